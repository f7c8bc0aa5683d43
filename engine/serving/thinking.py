"""Splits generated text into what the model thought and what it says, in whatever pieces the text arrives.

A thought is between `<think>` and `</think>` at the beginning of a generation. The tags and the white space around them belong
to neither part. Elsewhere the tags are text. The result is the same for every way to cut the text into pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

OPEN: Final = "<think>"
CLOSE: Final = "</think>"


class Thinking:
    """A splitter of one generation. `begun`: the prompt has opened the thought already."""

    def __init__(self, *, begun: bool = False) -> None:
        self._state = "thought" if begun else "start"
        self.thought = begun  # whether the generation has a thought
        self._pending = ""
        self._trim = begun  # whether white space at the front is dropped

    @property
    def thinks(self) -> bool:
        """Whether the next text may belong to the thought."""
        return self._state != "content"

    def push(self, piece: str) -> tuple[str, str]:
        """The thought and the content that became certain with this piece."""
        self._pending += piece
        if self._state == "start":
            front = self._pending.lstrip()
            if front.startswith(OPEN):
                self._state, self._pending, self._trim = "thought", front[len(OPEN) :], True
                self.thought = True
            elif OPEN.startswith(front):
                return "", ""
            else:
                self._state = "content"
        thought = self._thought() if self._state == "thought" else ""
        return thought, self._content() if self._state == "content" else ""

    def finish(self) -> tuple[str, str]:
        """The rest, at the end of the generation."""
        rest, self._pending = self._pending, ""
        if self._state == "thought":
            return (rest.lstrip() if self._trim else rest).rstrip(), ""
        return "", rest.lstrip() if self._trim else rest

    def _thought(self) -> str:
        """What is certainly of the thought: all before the closing tag, but white space that may stand before it."""
        if self._trim:
            self._pending = self._pending.lstrip()
            self._trim = not self._pending
        text, found, rest = self._pending.partition(CLOSE)
        if found:
            self._state, self._pending, self._trim = "content", rest, True
            return text.rstrip()
        kept_back = overlap(self._pending, CLOSE)
        certain = self._pending[: len(self._pending) - kept_back].rstrip()
        self._pending = self._pending[len(certain) :]
        return certain

    def _content(self) -> str:
        text = self._pending.lstrip() if self._trim else self._pending
        self._trim, self._pending = self._trim and not text, ""
        return text


def begun(ids: Sequence[int], opens: int | None, closes: int | None) -> bool:
    """Whether a prompt ends in a thought: its template opened one for the generation. `opens` and `closes` are the tokens of
    the tags, None if the model has none."""
    tags = [token for token in ids if token in (opens, closes)]
    return opens is not None and closes is not None and bool(tags) and tags[-1] == opens


def overlap(text: str, tag: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `tag`."""
    return next((size for size in range(min(len(text), len(tag) - 1), 0, -1) if text.endswith(tag[:size])), 0)
