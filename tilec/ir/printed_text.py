"""What a `print` writes: the fields of its text, and the line of one element.

A text has `{}` for each value, and `{{` and `}}` for braces. A line names the block and the element before it:
`bid (0, 2) at (5, 1): x 0.5`; a scalar has no `at`. Integers and booleans (0 or 1) are written in decimal, floats as C's `%g`
with as many digits as tell all numbers of their dtype apart.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import ceil, isfinite, log10
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


_NUMBER: Final = re.compile(r"(-?(?:\d+(?:\.\d+)?(?:e[-+]\d+)?|inf\b|nan\b))")
_EXACT: Final = 1 << 24
"""Whole numbers below are equal or different; those above may be rounded."""


def difference(expected: Sequence[str], found: Sequence[str], close: float) -> str:
    """What tells the lines of two runs of a launch apart, empty if nothing does. Lines of the same element come in the order in
    which its block prints them, others in any. Whole numbers are equal, others differ by at most the fraction `close` of the
    largest in their field."""
    left, right = (sorted(lines, key=_element) for lines in (expected, found))
    if len(left) != len(right):
        return f"{len(found)} lines instead of {len(expected)}"
    scales: dict[str, list[float]] = {}
    for line in left:
        numbers = [abs(float(part)) for part in _NUMBER.findall(line)]
        finite = [number if isfinite(number) else 0.0 for number in numbers]
        known = scales.setdefault(_NUMBER.sub("", line), [0.0] * len(finite))
        scales[_NUMBER.sub("", line)] = [max(pair) for pair in zip(known, finite, strict=True)]
    for one, other in zip(left, right, strict=True):
        pairs = list(zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=False))
        allowed = [close * scale for scale in scales[_NUMBER.sub("", one)]]
        alike = _NUMBER.sub("", one) == _NUMBER.sub("", other)
        if not alike or not all(_is_close(a, b, most) for (a, b), most in zip(pairs, allowed, strict=True)):
            return f"`{other}` instead of `{one}`"
    return ""


def _element(line: str) -> str:
    return line.partition(": ")[0]


def _is_close(left: str, right: str, allowed: float) -> bool:
    a, b = float(left), float(right)
    whole = left.lstrip("-").isdigit() and right.lstrip("-").isdigit() and abs(a) < _EXACT
    return left == right or (not whole and abs(a - b) <= allowed)
