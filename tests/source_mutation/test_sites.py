"""The choice of mistakes is fixed, spread out, and each of them is another program."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

from tests.source_mutation.operators import changes
from tests.source_mutation.sites import chosen, files, mutants
from tests.source_mutation.suite import steps

ROOT = Path(__file__).resolve().parents[2]


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
        assert len({target for step in found for target in step}) == sum(map(len, found))
