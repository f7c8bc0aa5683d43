"""What a `print` writes: the fields of its text, and the line of one element.

A text has `{}` for each value, and `{{` and `}}` for braces. A line names the block and the element before it:
`bid (0, 2) at (5, 1): x 0.5`; a scalar has no `at`. Integers and booleans (0 or 1) are written in decimal, floats as C's `%g`
with as many digits as tell all numbers of their dtype apart.
"""

from __future__ import annotations

from math import ceil, log10
from typing import Final

from tilec.target.dtypes import DType

MOST_ELEMENTS: Final = 1024
"""The most elements that a `print` without `where` writes: a line each, of every block that executes it."""
MOST_VALUES: Final = 16
MOST_BYTES: Final = 512
"""Limits of the values and of the text of one `print`."""


def pieces(text: str) -> list[str]:
    """The text between the fields: one piece more than there are fields. ValueError if a brace is neither of a field nor
    doubled."""
    found, at = [""], 0
    while at < len(text):
        pair = text[at : at + 2]
        if pair == "{}":
            found.append("")
        elif pair in ("{{", "}}"):
            found[-1] += pair[0]
        elif text[at] in "{}":
            raise ValueError(text[at:])
        else:
            found[-1] += text[at]
            at -= 1
        at += 2
    return found


def significant_digits(dtype: DType) -> int:
    """Decimal digits that tell all numbers of a float dtype apart."""
    return 1 + ceil(dtype.significand * log10(2))


def is_one_line(text: str) -> bool:
    """Whether a text has no characters that would end or rewrite a line of a terminal."""
    return text.isprintable() and len(text.encode()) <= MOST_BYTES
