"""Distinguishes control tokens that a template wrote from text that merely spells them.

Returns the token ids of a text with control tokens only where they are intended. Control tokens are all added tokens of
`tokenizer.json`: `<|im_start|>`, `<|im_end|>`, `<think>`, `<tool_call>` and so on. Guarantees:

1. If the tokenizer finds exactly the control tokens that the template wrote, the ids are the tokenizer's own for the whole
   text, which are those of transformers.
2. Otherwise the template's control tokens are inserted where it wrote them, and the text between them is encoded by the same
   tokenizer without its added tokens: `<|im_end|>` in a message becomes the ids of `<`, `|`, `im`, `_end`, `|`, `>`.
3. Plain text never yields the id of a control token: if the tokenizer's merges produce one, the text is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tokenizers import Tokenizer

from engine.errors import UsageError
from engine.text.tokenizer_file import library_errors

LONG_TEXT: Final = 1 << 14
"""Characters of a text that is encoded as a batch of one: the library then lets other threads of Python run, which a text of
four million characters would stop for ten seconds. A short one needs none of the threads that it starts for batches."""


class ControlTokens:
    """The control tokens of a tokenizer, and a tokenizer without them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer: Any = tokenizer  # the library's methods are not fully typed
        self.ids: dict[str, int] = {
            str(token): token_id for token_id, token in self._tokenizer.get_added_tokens_decoder().items()
        }
        self._control_ids = frozenset(self.ids.values())
        self._longest_first = sorted(self.ids, key=len, reverse=True)
        plain: Any = Tokenizer(self._tokenizer.model)  # shares the vocabulary
        if self._tokenizer.normalizer is not None:
            plain.normalizer = self._tokenizer.normalizer
        plain.pre_tokenizer = self._tokenizer.pre_tokenizer
        self._text_tokenizer = plain

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; every spelled control token is recognized."""
        return list(self._encoding(self._tokenizer, text).ids)

    def encode_text(self, text: str) -> list[int]:
        """Token ids of a text without control tokens; UsageError if the vocabulary allows no such ids."""
        ids = list(self._encoding(self._text_tokenizer, text).ids)
        if not self._control_ids.isdisjoint(ids):
            raise UsageError("the text spells a control token that the vocabulary has no other ids for", fix="leave it out")
        return ids

    def encode_written(self, text: str, written: Sequence[int]) -> tuple[list[int] | None, bool]:
        """Token ids of a text with control tokens exactly at the character positions `written` (ascending), None if there is no
        control token at one of them; and whether the tokenizer finds exactly these on its own."""
        encoding = self._encoding(self._tokenizer, text)
        if self._control_positions(encoding, text) == list(written):
            return list(encoding.ids), True
        ids: list[int] = []
        end = 0
        for begin in written:
            token = next((token for token in self._longest_first if text.startswith(token, begin)), None)
            if token is None or begin < end:
                return None, False
            ids += [*self.encode_text(text[end:begin]), self.ids[token]]
            end = begin + len(token)
        return ids + self.encode_text(text[end:]), False

    def among(self, ids: Sequence[int]) -> list[int]:
        """The ids in `ids` that are control tokens."""
        return [token_id for token_id in ids if token_id in self._control_ids]

    def _control_positions(self, encoding: Any, text: str) -> list[int]:
        """The character positions of the control tokens in an encoding; -1 for one whose span does not spell it."""
        positions: list[int] = []
        if self._control_ids.isdisjoint(encoding.ids):
            return positions
        for token_id, (begin, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token_id in self._control_ids:
                positions.append(begin if self.ids.get(text[begin:end]) == token_id else -1)
        return positions

    def _encoding(self, tokenizer: Any, text: str) -> Any:
        """The library's encoding of a text. UsageError for an unpaired surrogate, Python's representation of command-line bytes
        that are not UTF-8, and if the library fails."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UsageError(f"the text is not valid Unicode at character {error.start}", fix="give it as UTF-8") from None
        with library_errors("the tokenizer cannot encode the text", UsageError):
            if len(text) < LONG_TEXT:
                return tokenizer.encode(text, add_special_tokens=False)
            return tokenizer.encode_batch([text], add_special_tokens=False)[0]
