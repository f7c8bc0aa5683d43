"""How deep llguidance's recursion goes for a grammar, how large what it makes of one, and threads in whose stack it fits.

llguidance bounds how deep brackets and values are nested, but it follows names by recursion, and a stack that overflows ends
the process. Names of Lark are rules and terminals. Those of a JSON schema are what `$ref` points at; each may be nested in
itself, and is compiled once.

Two kinds of numbers in a schema are bounded too. llguidance 1.9 takes an interval of integers below 0 as one above 0, by their
negatives; those of -2^63 and less, which it rounds up to that, have none, so that it would go on until the stack ends. And
multiples of a number are found by an automaton with a state for each remainder, which is made at once.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any, Final, cast
from urllib.parse import unquote

STACK_BYTES: Final = 64 << 20
"""Stack of a thread that compiles grammars. llguidance 1.x took 8 MiB for over 2000 rules in a chain, and for over 500 schemas
each of which refers to the next."""
MOST_RULES: Final = 4000
MOST_LEVELS: Final = 4000
"""Rules and terminals of a grammar; levels of a JSON schema, those of all that it refers to together."""
LEAST_NUMBER: Final = -(1 << 63) + 512
"""Numbers of a schema have to be greater. As a double, this one is -2^63."""
MOST_REMAINDERS: Final = 1 << 16
"""Of the least common multiple of all `multipleOf`, in units of their last decimal place; a power of ten may be larger, up to
`MOST_MULTIPLE`. llguidance 1.9 takes 0.8 seconds for as many, and 400 bytes and more for each."""
MOST_MULTIPLE: Final = 1 << 64


def too_deep(grammar: str) -> str | None:
    """Why a grammar of llguidance, in Lark or its own JSON, could need more stack than there is, or for a number more time and
    memory than a request may take; None if it cannot."""
    try:
        for lark in _larks(grammar):
            if sum(":" in line for line in lark.splitlines()) > MOST_RULES:
                return f"it has over {MOST_RULES} rules"
        schemas = list(_schemas(grammar))
        if any(_levels(schema) > MOST_LEVELS for schema in schemas):
            return f"what its schema refers to is nested over {MOST_LEVELS} levels deep"
        return next((why for schema in schemas if (why := _unfit(schema)) is not None), None)
    except RecursionError:
        return "it is nested too deeply"


def deep_thread(name: str) -> ThreadPoolExecutor:
    """An executor of one thread with a stack of `STACK_BYTES`, which takes memory only as far as it is used."""
    before = threading.stack_size(STACK_BYTES)
    try:
        found = ThreadPoolExecutor(1, thread_name_prefix=name)
        found.submit(int).result()  # starts the thread
    finally:
        threading.stack_size(before)
    return found


def _own(grammar: str) -> list[dict[str, Any]]:
    """The grammars of llguidance's own JSON; none if it is Lark."""
    try:
        value: Any = json.loads(grammar) if grammar.lstrip().startswith("{") else None
    except ValueError:
        return []
    found: Any = cast("dict[str, Any]", value).get("grammars") if isinstance(value, dict) else None
    return [one for one in cast("list[Any]", found) if isinstance(one, dict)] if isinstance(found, list) else []


def _larks(grammar: str) -> Iterator[str]:
    yield grammar
    yield from (one["lark_grammar"] for one in _own(grammar) if isinstance(one.get("lark_grammar"), str))


def _schemas(grammar: str) -> Iterator[Any]:
    yield from (one["json_schema"] for one in _own(grammar) if "json_schema" in one)
    decoder = json.JSONDecoder()
    for lark in _larks(grammar):
        for part in lark.split("%json")[1:]:
            try:
                yield decoder.raw_decode(part.lstrip())[0]
            except ValueError:
                continue  # llguidance refuses it


def _levels(schema: Any) -> int:
    """Levels of a schema and of each thing that it refers to, together."""
    names = {name for key, name in _parts(schema) if key == "$ref" and isinstance(name, str)}
    known: dict[int, int] = {}
    return _nesting(schema, known) + sum(_nesting(_target(schema, name), known) for name in names)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """A value and everything in it, with the names that objects give."""
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        name, one = waiting.pop()
        yield name, one
        if isinstance(one, dict):
            waiting += cast("dict[str, Any]", one).items()
        elif isinstance(one, list):
            waiting += [("", item) for item in cast("list[Any]", one)]


def _unfit(schema: Any) -> str | None:
    """Which numbers of a schema are out of bounds, None if none are."""
    numbers = [(name, one) for name, one in _parts(schema) if isinstance(one, int | float) and not isinstance(one, bool)]
    if any(number <= LEAST_NUMBER for _, number in numbers):
        return "it has a number of -2^63 or less"
    units = [Decimal(repr(number)).normalize() for name, number in numbers if name == "multipleOf" and abs(number) < math.inf]
    decimals = max((-int(unit.as_tuple().exponent) for unit in units), default=0)
    common = 1
    for unit in filter(None, units):
        common = math.lcm(common, int(abs(unit).scaleb(max(0, decimals))))
        if common > MOST_REMAINDERS and (common >= MOST_MULTIPLE or common != 10 ** (len(str(common)) - 1)):
            return f"the least common multiple of its `multipleOf` is over {MOST_REMAINDERS}"
    return None


def _nesting(value: Any, known: dict[int, int]) -> int:
    """Levels of a value. `known`: those of its parts, by their identity, so that each is counted once."""
    if not isinstance(value, dict | list):
        return 0
    if id(cast("object", value)) not in known:
        parts = cast("dict[str, Any]", value).values() if isinstance(value, dict) else cast("list[Any]", value)
        known[id(cast("object", value))] = 1 + max((_nesting(part, known) for part in parts), default=0)
    return known[id(cast("object", value))]


def _target(schema: Any, name: str) -> Any:
    """What a reference points at; the whole schema if it is no path in it."""
    found = schema
    for step in unquote(name.removeprefix("#")).split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = cast("dict[str, Any]", found).get(step, schema)
        elif isinstance(found, list) and step.isdecimal() and int(step) < len(cast("list[Any]", found)):
            found = cast("list[Any]", found)[int(step)]
        else:
            return schema
    return found
