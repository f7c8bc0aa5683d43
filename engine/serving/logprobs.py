"""Probabilities of tokens in the forms that OpenAI's two kinds of completions have."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from engine.sampling import Logprobs
from engine.text.tokenizer import Text

Reported = tuple[int, Logprobs]
"""A token, and its probability with those of the most likely ones."""

LEAST: Final = -9999.0
"""Stands for the logarithm of 0, which JSON lacks."""


@cache
def _byte_of_character() -> dict[str, int]:
    """The byte that each character stands for in the names of byte-level tokens (`bytes_to_unicode` of GPT-2)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + number): byte for number, byte in enumerate(others)}


class TokenTexts:
    """The texts and bytes of single tokens."""

    def __init__(self, text: Text) -> None:
        self._tokenizer = text.tokenizer

    def bytes_of(self, token: int) -> bytes:
        """The bytes of a token; they may be a part of a character."""
        name, table = self._tokenizer.id_to_token(token) or "", _byte_of_character()
        return bytes(table[one] for one in name) if all(one in table for one in name) else name.encode()

    def of_chat(self, reported: Sequence[Reported]) -> dict[str, Any]:
        """`logprobs` of a choice of a chat."""
        return {
            "content": [
                self._entry(token, found.own)
                | {"top_logprobs": [self._entry(*one) for one in zip(found.tokens, found.values, strict=True)]}
                for token, found in reported
            ]
        }

    def of_text(self, reported: Sequence[Reported], offset: int) -> dict[str, Any]:
        """`logprobs` of a choice of a text; `offset` is where its first token begins in the generated text. The most likely
        tokens include the drawn token. Of tokens with the same text, such as parts of characters, the likeliest one counts."""
        texts = [self._text(token) for token, _ in reported]
        offsets = [offset + sum(map(len, texts[:number])) for number in range(len(texts))]
        tops: list[dict[str, float]] = []
        for token, found in reported:
            tops.append({})
            for one, value in (*zip(found.tokens, found.values, strict=True), (token, found.own)):
                name = self._text(one)
                tops[-1][name] = max(_finite(value), tops[-1].get(name, LEAST))
        own = [_finite(found.own) for _, found in reported]
        return {"tokens": texts, "token_logprobs": own, "top_logprobs": tops, "text_offset": offsets}

    def _text(self, token: int) -> str:
        return self.bytes_of(token).decode(errors="replace")

    def _entry(self, token: int, value: float) -> dict[str, Any]:
        return {"token": self._text(token), "logprob": _finite(value), "bytes": list(self.bytes_of(token))}


def _finite(value: float) -> float:
    return max(value, LEAST)
