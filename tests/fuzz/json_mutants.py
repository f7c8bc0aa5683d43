"""Mutated JSON, as data or as text, for readers of untrusted input.

Some mutants are hostile (deep, huge, of another type), some are only different (a neighbor's value, a number off by one), so
that both a reader's refusals and what it accepts are tested.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

Path = tuple[str | int, ...]
STRINGS = (
    "", "x", "T", "../../etc/passwd", "/dev/zero", "a\0b", "\x1b[2J", "\u202eabc", "\ud800", "\udfff\ud800", "__class__",
    "x" * 70_000, "sm_100a", "0" * 64, "f8e4m3", "bool", "i64", "out", "in", "scalar", "dim", "pointer", "stride", "%s%n",
)  # fmt: skip
NUMBERS = (
    0, 1, -1, 2, 3, 7, 8, 16, 64, 127, 128, 1024, 1025, 65536, 2**31 - 2**16, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**62,
    2**63 - 1, -(2**63), 2**63, 2**64, 10**25, 10**5000, 0.5, -0.0, 1e308, float("nan"), float("inf"), True, False, None,
)  # fmt: skip
OPERATORS = ("+", "-", "*", "//", "%", "min", "max", "==", "!=", "<", "<=", ">", ">=", "and", "or", "**", "exec", "not")
TOKENS = (
    b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"9" * 100_000, b"-" + b"9" * 5000, b"0." + b"0" * 100_000 + b"1",
    b"1e-400", b"[" * 3000, b"[" * 100_000, b'{"a":' * 3000, b'"\\ud800"', b'"\\u0000"', b"\xff\xfe", b"\x00", b"'x'", b"//",
    b"0x10",     b"01", b"1_000", b"tru", b'""', b"[]", b"{}", b"null", b"true", b"1.0", b'"' + b"\\u0041" * 20_000 + b'"',
)  # fmt: skip


def paths(value: Any, at: Path = ()) -> Iterator[Path]:
    """The path of every value inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*at, key)
        yield from paths(item, (*at, key))


def get(value: Any, path: Path) -> Any:
    """The value at a path."""
    for key in path:
        value = value[key]
    return value


def expression(rng: random.Random, depth: int = 3) -> Any:
    """A random launch expression, sometimes with an unknown operator."""
    if depth == 0 or rng.random() < 0.3:
        return rng.choice(["T", "S", "H", "V", "n", "eps", "nobody", *NUMBERS[:12], 2**31, -(2**63)])
    return [rng.choice(OPERATORS), expression(rng, depth - 1), expression(rng, depth - 1)]


def tower(rng: random.Random) -> Any:
    """An expression that is deep, or wide, or has a huge value."""
    kind = rng.randrange(3)
    made: Any = 2**62 + 1
    if kind == 0:
        for _ in range(rng.choice((60, 64, 65, 300))):
            made = ["+", made, 1]
        return made
    for _ in range(rng.choice((5, 9, 11))):
        made = ["*" if kind == 1 else "+", made, made]
    return made


def junk(rng: random.Random) -> Any:
    """A value of any type."""
    return rng.choice(
        (
            lambda: rng.choice(NUMBERS), lambda: rng.choice(STRINGS), lambda: rng.choice(NUMBERS), lambda: expression(rng),
            list, dict, lambda: [rng.choice(NUMBERS)] * rng.choice((1, 3, 200)), lambda: {"a": {"b": [None]}},
            lambda: tower(rng),
        )
    )()  # fmt: skip


def replaced(data: Any, rng: random.Random, found: list[Path]) -> None:
    """Replaces a value by junk."""
    path = rng.choice(found)
    get(data, path[:-1])[path[-1]] = junk(rng)


def neighbour(data: Any, rng: random.Random, found: list[Path]) -> None:
    """Replaces a value by another one of the document, of the same type if there is one."""
    path = rng.choice(found)
    here = get(data, path)
    others = [other for other in found if type(get(data, other)) is type(here)]
    get(data, path[:-1])[path[-1]] = copy.deepcopy(get(data, rng.choice(others)))


def nudged(data: Any, rng: random.Random, found: list[Path]) -> None:
    """Changes a number by a little, or by a factor."""
    numbers = [path for path in found if type(get(data, path)) is int]
    if not numbers:
        return replaced(data, rng, found)
    path = rng.choice(numbers)
    value = get(data, path)
    get(data, path[:-1])[path[-1]] = rng.choice((value + 1, value - 1, value * 2, value // 2, -value, value + 2**32))
    return None


def dropped(data: Any, rng: random.Random, found: list[Path]) -> None:
    """Removes a field or item."""
    path = rng.choice(found)
    del get(data, path[:-1])[path[-1]]


def doubled(data: Any, rng: random.Random, found: list[Path]) -> None:
    """Duplicates an item, or adds an unknown field."""
    holders = [(), *(path for path in found if isinstance(get(data, path), (list, dict)))]
    holder = get(data, rng.choice(holders))
    if isinstance(holder, list):
        holder.insert(rng.randrange(len(holder) + 1), copy.deepcopy(rng.choice(holder)) if holder else junk(rng))
    else:
        holder[rng.choice(STRINGS[:11])] = junk(rng)


def shuffled(data: Any, rng: random.Random, found: list[Path]) -> None:
    """Reorders a list."""
    lists = [path for path in found if isinstance(get(data, path), list)]
    if lists:
        rng.shuffle(get(data, rng.choice(lists)))


KINDS: tuple[Callable[[Any, random.Random, list[Path]], None], ...] = (replaced, neighbour, nudged, dropped, doubled, shuffled)


def mutated(data: Any, rng: random.Random) -> tuple[str, Any]:
    """The kind, and a copy of `data` with one to three changes."""
    made = json.loads(json.dumps(data))
    names: list[str] = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        found = list(paths(made))
        if found:
            kind = rng.choice(KINDS)
            kind(made, rng, found)
            names.append(kind.__name__)
    return " ".join(sorted(set(names))), made


def mutated_text(text: bytes, rng: random.Random) -> tuple[str, bytes]:
    """The kind, and the text with some bytes changed, cut, or replaced by another token."""
    at = rng.randrange(len(text))
    kind = rng.randrange(6)
    if kind == 0:
        return "bytes", text[:at] + rng.randbytes(rng.randrange(1, 5)) + text[at + rng.randrange(5) :]
    if kind == 1:
        return "cut", text[:at]
    if kind == 2:
        end = min(len(text), at + rng.randrange(1, 60))
        return "repeated", text[:end] + text[at:end] * rng.randrange(1, 3) + text[end:]
    token = rng.choice(TOKENS)
    starts = [i for i in range(len(text)) if text[i : i + 1] in b":[,"] or [0]
    at = rng.choice(starts) + 1
    end = at
    while end < len(text) and text[end : end + 1] not in b",]}":
        end += 1
    return "token", text[:at] + token + text[end:]
