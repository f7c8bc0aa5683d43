"""Which instructions every path passes, compared with what is reached where one instruction is left out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilec.audit.graph import Graph

emulator: Any = pytest.importorskip("tilec.emulator")
LINES = 8
lines = st.lists(st.tuples(st.sampled_from(["mov", "bra", "@bra", "ret", "@ret"]), st.integers(0, LINES)), max_size=LINES)


def program(steps: list[tuple[str, int]]) -> Any:
    forms = {"mov": "mov.u32 %r0, 1;", "bra": "bra L{};", "@bra": "@%p0 bra L{};", "ret": "ret;", "@ret": "@%p0 ret;"}
    body = "\n".join(f"L{at}: {forms[form].format(min(to, len(steps)))}" for at, (form, to) in enumerate(steps))
    head = ".version 8.8\n.target sm_100a\n.address_size 64\n.visible .entry k()\n{ .reg .b32 %r<1>; .reg .pred %p<1>;\n"
    return emulator.parse(f"{head}{body}\nL{len(steps)}: ret;\n}}\n").functions["k"]


def reached(steps: list[tuple[str, int]], without: int) -> set[int]:
    """The lines that a path reaches which does not execute one of them."""
    found: set[int] = set()
    left = [0]
    while left:
        at = left.pop()
        if at in found or at == without or at > len(steps):
            continue
        found.add(at)
        form, to = steps[at] if at < len(steps) else ("ret", 0)
        left += [min(to, len(steps))] if "bra" in form else []
        left += [at + 1] if form in ("mov", "@bra", "@ret") else []
    return found


@given(lines)
def test_what_every_path_passes_before(steps: list[tuple[str, int]]) -> None:
    graph = Graph(program(steps))
    for later in reached(steps, -1):
        for earlier in range(len(steps) + 1):
            assert graph.passed_before(earlier, later) == (earlier != later and later not in reached(steps, earlier))


def test_a_table_leads_to_its_labels_and_an_unknown_one_anywhere() -> None:
    text = ".version 8.8\n.target sm_100a\n.address_size 64\n.visible .entry k()\n{ .reg .b32 %r<1>;\n"
    body = "mov.u32 %r0, 0; T: .branchtargets A, B; brx.idx %r0, T; A: ret; B: ret; C: ret;\n}\n"
    function = emulator.parse(text + body).functions["k"]
    graph = Graph(function)
    assert graph.next[0] == {1, 2}
    function.tables.clear()
    assert Graph(function).next[0] == {0, 1, 2, 3, 4}
