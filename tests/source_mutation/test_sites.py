"""The choice of mistakes is fixed, spread out, and each of them is another program."""

from __future__ import annotations

import ast
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.source_mutation.operators import changes
from tests.source_mutation.reach import insert_probes, reached, read_map, write_map
from tests.source_mutation.sites import SAFETY, WEIGHTS, Mutant, chosen, files, mutants
from tests.source_mutation.suite import DEFAULT, RATCHET, command, steps, targets, wide_files

ROOT = Path(__file__).resolve().parents[2]


def test_every_weight_is_of_a_file_or_folder_that_is_there() -> None:
    assert [name for name in (*WEIGHTS, *SAFETY) if not (ROOT / name).exists()] == []


@pytest.mark.campaign
def test_the_choice_is_fixed_and_spread() -> None:
    found = chosen(ROOT, 60)
    assert found == chosen(ROOT, 60)
    assert len({m.identity for m in found}) == len(found) == 60
    by_file = Counter(m.path for m in found)
    assert len(by_file) >= 30
    assert max(by_file.values()) <= 6
    assert len({m.operator for m in found}) >= 8
    for m in found:
        text = (ROOT / m.path).read_text(encoding="utf-8")
        assert text[m.start : m.end] == m.old
        assert ast.dump(ast.parse(m.applied(text))) != ast.dump(ast.parse(text)), m


@pytest.mark.campaign
def test_the_next_of_the_file_stands_in_for_one_left_out() -> None:
    before = chosen(ROOT, 60)
    gone = {before[0].identity, before[30].identity}
    after = chosen(ROOT, 60, gone)
    assert not gone & {m.identity for m in after} and len(after) == 60
    assert Counter(m.path for m in after) == Counter(m.path for m in before)
    assert len({m.identity for m in before} & {m.identity for m in after}) >= 56


@pytest.mark.campaign
def test_what_is_explained_is_there() -> None:
    """A note whose mistake can no longer be made explains nothing; what is called equivalent says why."""
    notes: dict[str, str] = json.loads((ROOT / "ci/bench/judges/source_mutant_notes.json").read_text(encoding="utf-8"))
    known = {m.identity for path, _ in files(ROOT) for m in mutants(ROOT, path)}
    assert notes.keys() <= known
    assert all(len(note.removeprefix("equivalent: ")) > 20 for note in notes.values())


def test_messages_and_docstrings_are_left_alone() -> None:
    path = next(path for path, _ in files(ROOT) if path.name == "bounds.py")
    text = path.read_text(encoding="utf-8")
    docstring = ast.get_docstring(ast.parse(text), clean=False) or ""
    for m in mutants(ROOT, path):
        assert m.start > text.index(docstring) + len(docstring)
        assert m.function not in ("_hint", "_dim_text", "_complaint")


def test_each_kind_of_mistake_is_found() -> None:
    source = """
def f(a, b, findings):
    if a < b and not a:
        findings.report(a)
    for i in range(a - b, 4):
        b += i // 2
    return True if select(a, b, a) == "slt" else -a
"""
    tree = ast.parse(source)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    found = {change[0] for node in ast.walk(tree) for change in changes(node, parents.get(node))}
    expected = {
        "flipped comparison", "and/or", "dropped condition", "dropped not", "dropped call", "dropped step", "wrong operator",
        "swapped operands", "off by one", "wrong sign", "removed guard", "swapped arguments", "wrong word",
    }  # fmt: skip
    assert expected <= found


def test_every_file_has_tests_of_its_own_first() -> None:
    for path, _ in files(ROOT):
        found = steps(ROOT, path.relative_to(ROOT).as_posix())
        assert len(found) >= 6
        files_run = [target for step in found for target in targets(step)]
        assert len(set(files_run)) == len(files_run)
        assert RATCHET in found
        assert all((ROOT / target).is_file() for step in found if step != RATCHET for target in targets(step))


def test_a_step_is_a_command_that_runs_the_tree_it_is_in() -> None:
    assert command(RATCHET)[1:] == ["-P", "-m", "tilec", "ratchet", "--jobs", "1"]
    assert command(("tests/ir", "tests/cli"))[-4:] == ["-m", "not gpu", "tests/ir", "tests/cli"]
    assert command((DEFAULT, "tests/ir"))[-3:] == ["-m", "not gpu and not campaign", "tests/ir"]


def test_probes_name_the_functions_that_run(tmp_path: Path) -> None:
    methods = "    def g(self):\n        return f()\n\n    def h(self):\n        return 2\n"
    source = f"def f():\n    'doc'\n    return 1\n\n\nclass A:\n{methods}"
    (tmp_path / "a.py").write_text(source)
    wanted = [Mutant("a.py", 1, name, "", "", 0, 0, "", "", 0) for name in ("f", "g", "h")]
    insert_probes(tmp_path, wanted)
    names: dict[str, Any] = {}
    exec((tmp_path / "a.py").read_text(), names)
    assert reached(tmp_path) == set()
    assert names["A"]().g() == 1 and names["A"]().g() == 1
    assert reached(tmp_path) == {wanted[0].identity, wanted[1].identity}
    assert reached(tmp_path) == set()


def test_the_map_comes_back(tmp_path: Path) -> None:
    found = {"a": ["tests/x.py", "tests/y.py"], "b": [], "c": ["tests/y.py"]}
    write_map(tmp_path / "map.json", found)
    assert read_map(tmp_path / "map.json") == found
    assert read_map(tmp_path / "none.json") == {}


def test_wide_steps_are_limited_to_the_files_that_reach_the_function() -> None:
    path = "tilec/passes/prover/bounds.py"
    everywhere, nowhere = steps(ROOT, path), steps(ROOT, path, ())
    assert [step for step in everywhere if DEFAULT not in step] == nowhere
    one = wide_files(ROOT)[-1]
    assert [step for step in steps(ROOT, path, {one}) if DEFAULT in step] == [(DEFAULT, one)]
