"""Positions: spans count lines from 1 and columns in characters, the protocol counts lines from 0 and columns in code units.

In: a text, and the encoding that client and server agreed on (UTF-16 unless the client prefers another). Lines end at `\\n`,
`\\r\\n` and `\\r`, as in Python and in the protocol, and at none of Unicode's other line separators.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from lsprotocol import types

from tilec.diagnostics.diagnostic import Span

_END: Final = re.compile(r"\r\n|\r|\n")
_WORD: Final = re.compile(r"\w+")
_BEFORE: Final = re.compile(r"(\w+)\s*\.\s*$")


@dataclass(frozen=True, slots=True)
class Word:
    """A name in a text with its columns; `package` is the name before a preceding dot, or empty."""

    text: str
    line: int
    column: int
    end: int
    package: str = ""


class Text:
    """One version of a file's text."""

    def __init__(self, text: str, encoding: str = types.PositionEncodingKind.Utf16) -> None:
        self.text = text
        self.encoding = encoding
        self.lines = _END.split(text)

    def position(self, line: int, column: int) -> types.Position:
        """The protocol position of a line (from 1) and a column in characters; a position past the text is clamped to its
        end."""
        line = min(max(line, 1), len(self.lines))
        return types.Position(line - 1, self._units(self.lines[line - 1][: max(column, 0)]))

    def range(self, span: Span) -> types.Range:
        """The protocol range of a span; an empty span is extended by one character, so that it is visible."""
        end = span.end_column
        if (span.end_line, end) <= (span.line, span.column):
            end = span.column + 1
        return types.Range(self.position(span.line, span.column), self.position(max(span.end_line, span.line), end))

    def location(self, position: types.Position) -> tuple[int, int]:
        """Line (from 1) and column in characters of a position; a position past the text is clamped to its end."""
        if position.line >= len(self.lines):
            return len(self.lines), len(self.lines[-1])
        remaining, line = position.character, self.lines[position.line]
        for column, character in enumerate(line):
            if remaining <= 0:
                return position.line + 1, column
            remaining -= self._units(character)
        return position.line + 1, len(line)

    def word(self, line: int, column: int) -> Word | None:
        """The name at a position, or directly before it."""
        text = self.lines[line - 1]
        for found in _WORD.finditer(text):
            if found.start() <= column <= found.end():
                before = _BEFORE.search(text[: found.start()])
                return Word(found[0], line, found.start(), found.end(), before[1] if before else "")
        return None

    def _units(self, text: str) -> int:
        if self.encoding == types.PositionEncodingKind.Utf8:
            return len(text.encode("utf-8", "surrogatepass"))
        if self.encoding == types.PositionEncodingKind.Utf32:
            return len(text)
        return sum(2 if ord(character) > 0xFFFF else 1 for character in text)


def contains(span: Span, line: int, column: int) -> bool:
    """Whether a position lies in a span, its end included."""
    return (span.line, span.column) <= (line, column) <= (span.end_line, span.end_column)


def size(span: Span) -> tuple[int, int]:
    """Sort key for the smallest of several spans around one position."""
    return span.end_line - span.line, span.end_column - span.column
