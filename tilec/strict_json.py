"""JSON that someone else wrote: bytes go in, plain data whose size, depth, numbers and texts are bounded comes out.

Python's reader takes more than JSON (NaN, Infinity), keeps the last of two equal keys, turns `1e999` into infinity, and reads
integers of any length and nesting until the stack ends. Here each of these is a ValueError in one short line, and nothing that
a text of a few bytes can ask for takes more than a few times its own size in time and memory (RFC 8259, sections 4, 6 and 9,
leaves all of these limits to the reader).
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

from tilec.bundle_format import canonical as canonical_text

MAX_VALUES: Final = 1 << 20
MAX_TEXT: Final = 1 << 16
"""Characters of one string, where the reader says no other number."""
MAX_DEPTH: Final = 200
MAX_DIGITS: Final = 20
"""Of an integer, its sign included: what 64 bits need."""
MAX_FLOAT: Final = 400
"""Characters of a number with a fraction or an exponent."""


def parse(text: bytes, *, limit: int, canonical: bool = False, printable: bool = True, longest: int = MAX_TEXT) -> Any:
    """The data of a JSON text of at most `limit` bytes; ValueError, naming what is wrong, for any other.

    `canonical` demands the one text that `bundle_format.canonical` writes; else the text is UTF-8 in any layout. `printable`
    refuses texts with characters that a terminal would obey, lone surrogates among them. `longest` bounds the characters of one
    text. Integers have 64 bits with a sign.
    """
    if len(text) > limit:
        raise ValueError(f"it has {len(text)} bytes, more than the {limit} it may have")
    # Every value but the first follows a comma, a bracket or a colon, so this bounds what the parser may allocate.
    if sum(text.count(mark) for mark in (b",", b"[", b"{", b":")) > MAX_VALUES:
        raise ValueError("it has too many values")
    hook = None if canonical else _once  # a text with a key twice is not the canonical one
    try:
        data = json.loads(
            text.decode("ascii" if canonical else "utf-8"), parse_int=_integer, parse_float=_float, parse_constant=_constant,
            object_pairs_hook=hook,
        )  # fmt: skip
    except UnicodeError:
        raise ValueError(f"it is not {'ASCII' if canonical else 'UTF-8'}") from None
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    _check(data, printable, longest)
    if canonical and canonical_text(data) != text:
        raise ValueError("it is not in canonical form")
    return data


def _integer(text: str) -> int:
    value = int(text) if len(text) <= MAX_DIGITS else 1 << 64
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError("a number in it is too large")
    return value


def _float(text: str) -> float:
    value = float(text) if len(text) <= MAX_FLOAT else math.inf
    if not math.isfinite(value):
        raise ValueError("a number in it is too large")
    return value


def _constant(text: str) -> float:
    raise ValueError(f"`{text}` is no JSON number")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice in one object")
    return found


def _check(data: Any, printable: bool, longest: int) -> None:
    """Depth and texts, level by level, so that no recursion can end the check."""
    level: list[Any] = [data]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for value in level:
            if isinstance(value, str):
                if len(value) > longest or (printable and not value.isprintable()):
                    raise ValueError("a text in it is too long or has control characters")
            elif isinstance(value, list):
                below.extend(value)  # pyright: ignore[reportUnknownArgumentType]
            elif isinstance(value, dict):
                below.extend(value)  # pyright: ignore[reportUnknownArgumentType]
                below.extend(value.values())  # pyright: ignore[reportUnknownArgumentType]
        if not below:
            return
        level = below
    raise ValueError("it is nested too deep")
