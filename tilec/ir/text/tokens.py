"""Tokenizer of the tile IR's text form: words, signs, numbers and strings, with line and column."""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class ParseError(Exception):
    """The text is not tile IR; `line` and `column` count from 1."""

    def __init__(self, message: str, line: int, column: int) -> None:
        self.message, self.line, self.column = message, line, column
        super().__init__(f"{line}:{column}: {message}")


class Token(NamedTuple):
    """`kind` is value (with its `%`), word, integer, float, text (unescaped), sign or end."""

    kind: str
    text: str
    line: int
    column: int

    @property
    def description(self) -> str:
        """The token as an error message names it."""
        return "the end of the text" if self.kind == "end" else f"`{self.text}`"


_PATTERN: Final = re.compile(
    r"""(?P<blank>[ \t\r]+)
    |(?P<line>\n)
    |(?P<value>%\w+)
    |(?P<float>0x[01]\.[0-9a-f]{1,13}p[+-][0-9]{1,4}(?!\w))
    |(?P<integer>[0-9]{1,40}(?!\w))
    |(?P<word>[^\W\d]\w*)
    |(?P<text>"(?:[^"\\\n]|\\.)*")
    |(?P<sign>\.\.|//|[=!<>]=|[-+*%(){}\[\]<>,:=@^|])""",
    re.VERBOSE,
)
_ESCAPES: Final = {"n": "\n"}


def tokenize(text: str) -> list[Token]:
    """All tokens, followed by one of kind end; ParseError at a character that begins no token."""
    tokens: list[Token] = []
    line, line_start, position = 1, 0, 0
    while position < len(text):
        match = _PATTERN.match(text, position)
        if match is None:
            raise ParseError(f"unexpected character {text[position]!r}", line, position - line_start + 1)
        kind, end = str(match.lastgroup), match.end()
        if kind == "line":
            line, line_start = line + 1, end
        elif kind != "blank":
            token_text = text[position:end]
            if kind == "text":
                token_text = re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), token_text[1:-1])
            tokens.append(Token(kind, token_text, line, position - line_start + 1))
        position = end
    tokens.append(Token("end", "", line, position - line_start + 1))
    return tokens
