"""Makes text of tokens as they come: pieces that never split a character, up to strings at which a text stops.

In: tokens, one at a time, and what decodes them. Out: text that later tokens cannot change. The tokenizer library is not
imported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from engine.errors import UsageError

REPLACEMENT: Final = "\ufffd"
MAX_INCOMPLETE: Final = 3
"""Maximum replacement characters at the end of a text that further bytes may complete to one character: all but the last of its
at most four bytes."""
WINDOW: Final = 16
KEPT_TOKENS: Final = 8
"""Maximum number of tokens decoded together (`WINDOW`), and the number kept when it is exceeded (`KEPT_TOKENS`): the last three
may be part of a character, the first three may be the rest of another. Each token has at least one byte."""


class Decoder(Protocol):
    """The part of `engine.text.tokenizer.Text` that decodes."""

    def decode(self, ids: Sequence[int]) -> str: ...
    def is_silent(self, token: int) -> bool: ...


class Detokenizer:
    """Incremental decoder: pieces of text that never split a character. The cost of a token does not grow with the length.

    A byte-level token may be part of a character, and its text may depend on the previous token. So the last tokens are decoded
    together, and everything not yet returned is returned, except replacement characters at the end, which further bytes may
    complete. Tokens far enough back no longer affect the result, complete or not.
    """

    def __init__(self, text: Decoder) -> None:
        self._text = text
        self._ids: list[int] = []
        self._returned = 0  # characters of the decoded `_ids` that were returned

    def push(self, token: int) -> str:
        """The text that became certain with this token; often empty, never part of a character."""
        if self._text.is_silent(token):
            return ""
        self._ids.append(token)
        decoded = self._text.decode(self._ids)
        tail = decoded[-MAX_INCOMPLETE:]
        certain = len(decoded) - len(tail) + len(tail.rstrip(REPLACEMENT))
        piece = decoded[self._returned : certain]
        self._returned = max(self._returned, certain)
        if len(self._ids) > WINDOW:
            self._shorten(decoded)
        return piece

    def _shorten(self, now: str) -> None:
        """Drop all but the last tokens. Text not yet returned is at the end, so it is at the end of what the kept tokens decode
        to. If a decoder violates that, the text is dropped rather than kept forever."""
        self._ids = self._ids[-KEPT_TOKENS:]
        kept, pending = self._text.decode(self._ids), now[self._returned :]
        self._returned = len(kept) - (len(pending) if kept.endswith(pending) else 0)

    def finish(self) -> str:
        """The remaining text; bytes that never formed a character are replacement characters."""
        decoded = self._text.decode(self._ids)
        piece, self._returned = decoded[self._returned :], len(decoded)
        return piece


class StopStrings:
    """Ends a text before the stop string that is completed first (of several, the longest), independent of how the text is
    split into pieces. UsageError for an empty string."""

    def __init__(self, strings: str | Sequence[str]) -> None:
        strings = (strings,) if isinstance(strings, str) else strings
        if "" in strings:
            raise UsageError("a stop string is empty", fix="leave it out")
        self._strings = tuple(strings)
        self._pending = ""
        self.found = False

    def push(self, piece: str) -> str:
        """The text in which no stop string can begin any more; empty after a stop string was found."""
        if self.found:
            return ""
        text = self._pending + piece
        matches = [(text.find(string) + len(string), text.find(string)) for string in self._strings if string in text]
        if matches:
            self.found, self._pending = True, ""
            return text[: min(matches)[1]]
        kept = max((self._overlap(text, string) for string in self._strings), default=0)
        self._pending = text[len(text) - kept :]
        return text[: len(text) - kept]

    def finish(self) -> str:
        """The text held back so far, at the end of the text."""
        kept, self._pending = self._pending, ""
        return kept

    @staticmethod
    def _overlap(text: str, string: str) -> int:
        """Length of the longest suffix of `text` that is a proper prefix of `string`."""
        return next((size for size in range(min(len(text), len(string) - 1), 0, -1) if text.endswith(string[:size])), 0)
