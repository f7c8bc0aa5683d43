"""Control tokens that a template wrote, and texts that merely spell them.

A tokenizer goes in with a text; token ids come out in which a control token stands only where it was written on purpose.
Control tokens are all that `tokenizer.json` lists as added: `<|im_start|>`, `<|im_end|>`, `<think>`, `<tool_call>` and so on.
What holds:

1. where the tokenizer finds exactly the control tokens that the template wrote, the ids are the tokenizer's own for the whole
   text, and so those of transformers;
2. else the template's are placed where it wrote them, and the text between them is encoded by the same tokenizer without its
   added tokens: `<|im_end|>` of a message becomes the ids of `<`, `|`, `im`, `_end`, `|`, `>`;
3. no id of a control token comes from a text: if the tokenizer's pieces hold one nevertheless, the text is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer

from engine.errors import UsageError
from engine.text.tokenizer_file import library_errors


class ControlTokens:
    """The control tokens of a tokenizer, and the tokenizer without them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._whole: Any = tokenizer  # its methods have no full types
        self.ids: dict[str, int] = {str(token): number for number, token in self._whole.get_added_tokens_decoder().items()}
        self._numbers = frozenset(self.ids.values())
        self._longest_first = sorted(self.ids, key=len, reverse=True)
        bare: Any = Tokenizer(self._whole.model)  # shares the vocabulary
        if self._whole.normalizer is not None:
            bare.normalizer = self._whole.normalizer
        bare.pre_tokenizer = self._whole.pre_tokenizer
        self._bare = bare

    def encode(self, text: str) -> list[int]:
        """Ids of a text in which control tokens are recognised, wherever they come from."""
        return list(self._encoding(self._whole, text).ids)

    def encode_text(self, text: str) -> list[int]:
        """Ids of a text in which nothing is a control token; UsageError where the vocabulary allows no such ids."""
        ids = list(self._encoding(self._bare, text).ids)
        if not self._numbers.isdisjoint(ids):
            raise UsageError("the text spells a control token that the vocabulary has no other ids for", fix="leave it out")
        return ids

    def encode_written(self, text: str, written: Sequence[int]) -> tuple[list[int] | None, bool]:
        """Ids of a text in which the control tokens that begin at the characters `written`, ascending, are recognised and no
        others; None where no token begins at one of them. And whether the tokenizer finds just these by itself."""
        whole = self._encoding(self._whole, text)
        if self._found(whole, text) == list(written):
            return list(whole.ids), True
        ids: list[int] = []
        done = 0
        for begin in written:
            token = next((token for token in self._longest_first if text.startswith(token, begin)), None)
            if token is None or begin < done:
                return None, False
            ids += [*self.encode_text(text[done:begin]), self.ids[token]]
            done = begin + len(token)
        return ids + self.encode_text(text[done:]), False

    def among(self, ids: Sequence[int]) -> list[int]:
        """Those of some ids that are control tokens'."""
        return [number for number in ids if number in self._numbers]

    def _found(self, encoding: Any, text: str) -> list[int]:
        """The characters at which control tokens begin that the tokenizer found, -1 for one that it found elsewhere."""
        found: list[int] = []
        if self._numbers.isdisjoint(encoding.ids):
            return found
        for number, (begin, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if number in self._numbers:
                found.append(begin if self.ids.get(text[begin:end]) == number else -1)
        return found

    def _encoding(self, tokenizer: Any, text: str) -> Any:
        """What the library makes of a text; UsageError for half of a surrogate pair, which is how Python spells bytes of a
        command line that are not UTF-8, and where the library fails."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UsageError(f"the text is not valid Unicode at character {error.start}", fix="give it as UTF-8") from None
        with library_errors("the tokenizer cannot encode the text", UsageError):
            return tokenizer.encode(text, add_special_tokens=False)
