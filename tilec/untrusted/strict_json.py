"""Parses untrusted JSON: takes bytes, returns plain data with bounded size, depth, numbers and strings.

Python's parser accepts more than JSON (NaN, Infinity), keeps the last of two equal keys, turns `1e999` into infinity, and
accepts integers of any length and nesting up to a stack overflow. Here each of these is a ValueError with a one-line message,
and no input takes more than a few times its own size in time and memory (RFC 8259, sections 4, 6 and 9, leaves all of these
limits to the parser).
"""

from __future__ import annotations

import json
import math
from functools import partial
from typing import Any, Final, cast

from tilec.artifact.bundle_format import canonical as canonical_text

MAX_VALUES: Final = 1 << 20
MAX_TEXT: Final = 1 << 16
"""Default maximum of characters of one string."""
MAX_DEPTH: Final = 200
MAX_DIGITS: Final = 20
"""Maximum digits of an integer including its sign, as needed for 64 bits."""
MAX_FLOAT: Final = 400
"""Maximum characters of a number with a fraction or an exponent."""


LARGEST: Final = (1 << 63) - 1
"""Default maximum of an integer."""
LARGEST_OF_MANIFEST: Final = 1 << 64
"""Maximum of an integer in a manifest: its contract names scalars of u64, and the end of a range that has them all."""


def parse(
    text: bytes, *, limit: int, canonical: bool = False, printable: bool = True, longest: int = MAX_TEXT, largest: int = LARGEST
) -> Any:
    """The data of a JSON text of at most `limit` bytes; ValueError that names the problem otherwise.

    `canonical` requires exactly the text that `bundle_format.canonical` writes; otherwise the text is UTF-8 in any layout.
    `printable` rejects strings with terminal control characters or lone surrogates. `longest` bounds the characters of one
    string. Integers are from -2^63 to `largest`.
    """
    if len(text) > limit:
        raise ValueError(f"it has {len(text)} bytes, more than the {limit} it may have")
    # Every value except the first follows a comma, a bracket or a colon, so this bounds what the parser can allocate.
    if sum(text.count(separator) for separator in (b",", b"[", b"{", b":")) > MAX_VALUES:
        raise ValueError("it has too many values")
    hook = None if canonical else _once  # a text with a duplicate key is not canonical
    try:
        data = json.loads(
            text.decode("ascii" if canonical else "utf-8"), parse_int=partial(_integer, largest=largest), parse_float=_float,
            parse_constant=_constant, object_pairs_hook=hook,
        )  # fmt: skip
    except UnicodeError:
        raise ValueError(f"it is not {'ASCII' if canonical else 'UTF-8'}") from None
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    _check(data, printable, longest)
    if canonical and canonical_text(data) != text:
        raise ValueError("it is not in canonical form")
    return data


def _integer(text: str, largest: int) -> int:
    value = int(text) if len(text) <= MAX_DIGITS else largest + 1
    if not -(1 << 63) <= value <= largest:
        raise ValueError("a number in it is too large")
    return value


def _float(text: str) -> float:
    value = float(text) if len(text) <= MAX_FLOAT else math.inf
    if not math.isfinite(value):
        raise ValueError("a number in it is too large")
    return value


def _constant(text: str) -> float:
    raise ValueError(f"`{text}` is not a JSON number")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice in one object")
    return found


def _check(data: Any, printable: bool, longest: int) -> None:
    """Checks depth and strings level by level, without recursion; a string once per level, because most are repeated."""
    level: list[Any] = [data]
    for _ in range(MAX_DEPTH):
        texts = {value for value in level if isinstance(value, str)}
        if any(len(text) > longest or (printable and not text.isprintable()) for text in texts):
            raise ValueError("a text in it is too long or has control characters")
        below: list[Any] = []
        for value in level:
            if isinstance(value, list):
                below.extend(cast("list[Any]", value))
            elif isinstance(value, dict):
                table = cast("dict[str, Any]", value)
                below.extend(table)
                below.extend(table.values())
        if not below:
            return
        level = below
    raise ValueError("it is nested too deep")
