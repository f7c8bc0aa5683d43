"""How deep llguidance's recursion goes for a grammar, and threads in whose stack it fits.

llguidance bounds how deep brackets and values are nested, but it follows names by recursion, and a stack that overflows ends
the process. Names of Lark are rules and terminals. Those of a JSON schema are what `$ref` points at; each may be nested in
itself, and is compiled once.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, cast
from urllib.parse import unquote

STACK_BYTES: Final = 64 << 20
"""Stack of a thread that compiles grammars. llguidance 1.x took 8 MiB for over 2000 rules in a chain, and for over 500 schemas
each of which refers to the next."""
MOST_RULES: Final = 4000
MOST_LEVELS: Final = 4000
"""Rules and terminals of a grammar; levels of a JSON schema, those of all that it refers to together."""


def too_deep(grammar: str) -> str | None:
    """Why a grammar of llguidance, in Lark or its own JSON, could need more stack than there is; None if it cannot."""
    try:
        for lark in _larks(grammar):
            if sum(":" in line for line in lark.splitlines()) > MOST_RULES:
                return f"it has over {MOST_RULES} rules"
        if any(_levels(schema) > MOST_LEVELS for schema in _schemas(grammar)):
            return f"what its schema refers to is nested over {MOST_LEVELS} levels deep"
    except RecursionError:
        return "it is nested too deeply"
    return None


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
    names = {name for value in _within(schema) for key, name in value.items() if key == "$ref" and isinstance(name, str)}
    known: dict[int, int] = {}
    return _nesting(schema, known) + sum(_nesting(_target(schema, name), known) for name in names)


def _within(value: Any) -> Iterator[dict[str, Any]]:
    """All objects of a value."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            found = cast("dict[str, Any]", one)
            yield found
            waiting += found.values()
        elif isinstance(one, list):
            waiting += cast("list[Any]", one)


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
