"""Reads `WWW-Authenticate` (RFC 9110, section 11): headers of anybody's go in, parameters by scheme come out.

One pass: the reader's position only moves forward, each character is looked at a bounded number of times, and of all headers
together no more than `MAX_CHALLENGE` characters are read. What does not fit the grammar ends the header at that place: a
challenge that is cut short is given as far as it was read, since who answers it judges every parameter anyway.

    challenges   scheme SPACE parameters, "," between them
    parameters   token68, or name = value, "," between them; a value is a quoted text, or ends at "," or white space
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

MAX_CHALLENGE: Final = 1 << 13
"""Characters of all headers of an answer; a longer header, and all after it, is left out."""
SCHEMES: Final = ("basic", "bearer")
_TOKEN: Final = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_TOKEN68: Final = _TOKEN | {"/"}
_SPACE: Final = frozenset(" \t")
_ENDS: Final = _SPACE | {",", '"'}


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.at, self.end = text, 0, len(text)

    def here(self) -> str:
        """The next character, empty at the end."""
        return self.text[self.at] if self.at < self.end else ""

    def skip(self, letters: frozenset[str]) -> str:
        """What stands here of some letters."""
        found: list[str] = []
        while (letter := self.here()) and letter in letters:
            found.append(letter)
            self.at += 1
        return "".join(found)

    def sign(self, sign: str) -> bool:
        """Go over a sign and the white space around it, where it stands here."""
        self.skip(_SPACE)
        if self.here() != sign:
            return False
        self.at += 1
        self.skip(_SPACE)
        return True

    def value(self) -> str | None:
        """A quoted text, or letters up to a comma or white space; None where there is neither."""
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
    """Parameters by scheme (`basic`, `bearer`), of the first challenge of each; names in lower case."""
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
    """Every challenge of a header, in order."""
    found: list[tuple[str, dict[str, str]]] = []
    while True:
        while reader.sign(","):
            pass
        name = reader.skip(_TOKEN).lower()
        if not name:
            return found
        spaced = bool(reader.skip(_SPACE))
        if reader.here() == "=" and found:  # one parameter more of the challenge before
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
    """What follows a scheme: its first parameter, or a token68, which neither scheme has a use for; False for neither."""
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
