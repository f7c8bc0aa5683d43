"""Results stay fresh over a renaming, and over nothing that could be more than one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from ci.evidence.digests import Digests
from ci.evidence.renamed import Confused, Renames, check, same

BEFORE = """
from tilec.old import helper

LIMIT = 3
FILES = ("old.py", "x")

class Box:
    def __init__(self, place):
        self.place = place

    def go(self, turns):
        found = [turn for turn in range(turns) if turn > LIMIT]
        for turn in found:
            last = helper(turn, place=self.place)
        return last
"""
AFTER = """
from tilec.room.new import helper

LIMIT = 3
FILES = ("room/new.py", "x")

class Box:
    def __init__(self, slot):
        self.slot = slot

    def go(self, turns):
        kept = [iteration for iteration in range(turns) if iteration > LIMIT]
        for iteration in kept:
            latest = helper(iteration, slot=self.slot)
        return latest
"""
RENAMES = Renames("before", {"place": "slot"}, {"old.py": "room/new.py"})


def is_same(tmp_path: Path, before: str, after: str, renames: Renames = RENAMES) -> bool:
    sides: list[Digests] = []
    for name, text in (("before", before), ("after", after)):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "a.py").write_text(text)
        sides.append(Digests(tmp_path / name))
    return same(sides[0], sides[1], ["a.py"], ["a.py"], renames)


def test_names_of_variables_and_of_the_table_count_for_nothing(tmp_path: Path) -> None:
    assert is_same(tmp_path, BEFORE, AFTER)
    assert not is_same(tmp_path, BEFORE, AFTER, Renames("before", {}, RENAMES.texts))
    assert not is_same(tmp_path, BEFORE, AFTER, Renames("before", RENAMES.names))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("> LIMIT", ">= LIMIT"), ("LIMIT = 3", "LIMIT = 4"), ("in kept:", "in range(turns):"), ("return latest", "return kept"),
        ("helper(iteration, slot", "helper(latest, slot"), ("if iteration > LIMIT", "if turns > LIMIT"),
        ("self.slot = slot", "self.slot = self"),
    ],
)  # fmt: skip
def test_what_is_more_than_a_name_counts(tmp_path: Path, old: str, new: str) -> None:
    assert old in AFTER
    assert not is_same(tmp_path, BEFORE, AFTER.replace(old, new))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # two variables change places in one use, not in the other
        ("def f(n):\n    a = n\n    b = 2\n    return a - b\n", "def f(n):\n    a = n\n    b = 2\n    return b - a\n"),
        # a variable becomes a name of the module, and the other way round
        ("def f():\n    a = 1\n    return a\n", "def f():\n    a = 1\n    return b\n"),
        ("def f():\n    a = 1\n    return b\n", "def f():\n    b = 1\n    return b\n"),
        # a parameter is what callers name
        ("def f(a, b):\n    return a - b\n", "def f(b, a):\n    return b - a\n"),
        # a default is evaluated outside
        ("def f(a=b):\n    b = a\n    return b\n", "def f(a=c):\n    c = a\n    return c\n"),
        # an inner function reads the outer one's variable, or its own
        (
            "def f():\n    a = 1\n    def g():\n        return a\n    return g\n",
            "def f():\n    a = 1\n    def g():\n        b = 1\n        return b\n    return g\n",
        ),
        ("def f(n):\n    global a\n    a = n\n", "def f(n):\n    global b\n    b = n\n"),
        ("def f():\n    from m import a\n    return a\n", "def f():\n    from m import b\n    return b\n"),
    ],
)
def test_other_programs_are_others(tmp_path: Path, before: str, after: str) -> None:
    assert not is_same(tmp_path, before, after, Renames("before"))


def test_a_table_that_confuses_is_refused() -> None:
    trees = [("a.py", ast.parse(BEFORE))]
    check(RENAMES, trees)
    for names in ({"place": "helper"}, {"place": "turns"}, {"place": "go"}, {"place": "slot", "turns": "slot"}):
        with pytest.raises(Confused):
            check(Renames("before", names), trees)
    with pytest.raises(Confused):
        check(Renames("before", {}, {"old.py": "x"}), trees)
    check(Renames("before", {"place": "found"}), trees)  # a local variable is no name that others see


def test_a_name_of_one_folder_may_become_a_common_word() -> None:
    inside, outside = "def f(place):\n    return place\n", "def g(slot, place):\n    return slot - place\n"
    table = Renames("before", {}, {}, {"room": {"place": "slot"}})
    trees = [("room/a.py", ast.parse(inside)), ("other/b.py", ast.parse(outside))]
    check(table, trees)
    with pytest.raises(Confused, match=r"room/b.py: `slot` and `place` become `slot`"):
        check(table, [*trees, ("room/b.py", ast.parse(outside))])
    assert table.names_in("room/a.py") == {"place": "slot"}
    assert table.names_in("rooms/a.py") == {}


@pytest.mark.parametrize(("folder", "same_then"), [("a.py", True), ("b.py", False)])
def test_names_below_a_path_count_there_alone(tmp_path: Path, folder: str, same_then: bool) -> None:
    table = Renames("before", {}, RENAMES.texts, {folder: {"place": "slot"}})
    assert is_same(tmp_path, BEFORE, AFTER, table) == same_then
