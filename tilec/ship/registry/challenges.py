"""Parses `WWW-Authenticate` (RFC 9110, section 11) of untrusted origin into parameters by scheme.

The parser runs in one pass: its position only moves forward, each character is read a bounded number of times, and at most
`MAX_CHALLENGE` characters are read over all headers. Parsing of a header stops at the first syntax error. The parameters up to
there are returned, even of an incomplete challenge, because the caller validates every parameter.

    challenges   scheme SPACE parameters, "," between them
    parameters   token68, or name = value, "," between them; a value is a quoted string, or ends at "," or white space
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

MAX_CHALLENGE: Final = 1 << 13
"""Maximum characters of all headers of a response; a longer header, and all after it, are ignored."""
SCHEMES: Final = ("basic", "bearer")
_TOKEN: Final = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_TOKEN68: Final = _TOKEN | {"/"}
_SPACE: Final = frozenset(" \t")
_ENDS: Final = _SPACE | {",", '"'}


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.at, self.end = text, 0, len(text)

    def here(self) -> str:
        """The next character; empty at the end."""
        return self.text[self.at] if self.at < self.end else ""

    def skip(self, letters: frozenset[str]) -> str:
        """Consume and return the longest run of some characters."""
        found: list[str] = []
        while (letter := self.here()) and letter in letters:
            found.append(letter)
            self.at += 1
        return "".join(found)

    def sign(self, sign: str) -> bool:
        """Consume a character and the white space around it; False if another character is next."""
        self.skip(_SPACE)
        if self.here() != sign:
            return False
        self.at += 1
        self.skip(_SPACE)
        return True

    def value(self) -> str | None:
        """A quoted string, or characters up to a comma or white space; None if there is neither."""
        found: list[str] = []
        if self.here() != '"':
            while (letter := self.here()) and letter not in _ENDS:
                found.append(letter)
                self.at += 1
            return "".join(found) or None
        self.at += 1
        while letter := self.here():
            self.at += 1
            if letter == '"':
                return "".join(found)
            if letter == "\\":
                letter = self.here()
                self.at += 1
            found.append(letter)
        return None


def read_challenges(headers: Sequence[str]) -> dict[str, dict[str, str]]:
    """Parameters of the first challenge of each scheme (`basic`, `bearer`); names in lower case."""
    found: dict[str, dict[str, str]] = {}
    left = MAX_CHALLENGE
    for header in headers:
        left -= len(header)
        if left < 0:
            break
        for scheme, parameters in _challenges(_Reader(header)):
            if scheme in SCHEMES:
                found.setdefault(scheme, parameters)
    return found


def _challenges(reader: _Reader) -> list[tuple[str, dict[str, str]]]:
    """All challenges of a header, in order."""
    found: list[tuple[str, dict[str, str]]] = []
    while True:
        while reader.sign(","):
            pass
        name = reader.skip(_TOKEN).lower()
        if not name:
            return found
        spaced = bool(reader.skip(_SPACE))
        if reader.here() == "=" and found:  # another parameter of the previous challenge
            reader.sign("=")
            value = reader.value()
            if value is None:
                return found
            found[-1][1].setdefault(name, value)
        elif reader.here() in ("", ","):  # a scheme without parameters
            found.append((name, {}))
        elif spaced:
            found.append((name, {}))
            if not _first(reader, found[-1][1]):
                return found
        else:
            return found
        reader.skip(_SPACE)
        if reader.here() not in ("", ","):
            return found


def _first(reader: _Reader, parameters: dict[str, str]) -> bool:
    """Parse what comes after a scheme: its first parameter, or a token68, which neither scheme uses; False for anything
    else."""
    name = reader.skip(_TOKEN68)
    if not name:
        return False
    if not reader.sign("="):
        return True
    if reader.here() in ("", ",", "="):  # the padding of a token68
        reader.skip(frozenset("="))
        return True
    value = reader.value()
    if value is not None:
        parameters[name.lower()] = value
    return value is not None
