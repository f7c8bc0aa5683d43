"""Planted mistakes in the scheduler, the pool and its keys: the model of `scheduler_model` finds each of them."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

import pytest
from scheduler_model import Code
from scheduler_search import details, explore, order_of_eviction, walk

FILE: Final = Path(__file__).with_name("scheduler_mistakes.txt")


class Mistake(NamedTuple):
    """What stands in a module, and what stands there instead."""

    module: str
    right: str
    wrong: str


def read_mistakes(text: str) -> dict[str, Mistake]:
    """Mistakes by what is wrong. Under `== module`, each is a line `# what is wrong`, and the change as in a diff."""
    found: dict[str, Mistake] = {}
    module, what, changed = "", "", dict[str, list[str]]()
    for line in [*text.splitlines(), "#"]:
        if line[0] in "-+":
            changed.setdefault(line[0], []).append(line[1:])
            continue
        if changed:
            found[what] = Mistake(module, *("\n".join(changed.get(sign, [])) for sign in "-+"))
        what, changed = line.lstrip("=# "), {}
        if line.startswith("=="):
            module = what
    return found


MISTAKES: Final = read_mistakes(FILE.read_text())


def planted(module: str, right: str, wrong: str) -> ModuleType:
    """A copy of a module with a mistake."""
    original: Any = getattr(Code(), module)
    with open(original.__file__, encoding="utf-8") as file:
        source = file.read()
    assert source.count(right) >= 1, "the mistake has nowhere to go"
    copy = ModuleType(f"planted_{module}")
    sys.modules[copy.__name__] = copy  # dataclasses look their own module up
    try:
        exec(compile(source.replace(right, wrong), original.__file__, "exec"), copy.__dict__)
    finally:
        del sys.modules[copy.__name__]
    return copy


def search(code: Code) -> None:
    """All that could find a mistake; AssertionError if something does."""
    order_of_eviction(code)
    details(code)
    for seed in range(6):
        walk(code, seed)
    for kind in ("contiguous", "pool", "narrow"):
        explore(code, kind, 200)


def test_without_a_mistake_nothing_is_found() -> None:
    search(Code())


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_is_found(what: str) -> None:
    one = MISTAKES[what]
    code = replace(Code(), **{one.module: planted(*one)})
    with pytest.raises((AssertionError, ValueError, IndexError, KeyError)):
        search(code)
