"""The matrix of killers: read from pytest's output, and which functions add nothing."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from ci.bench.judges.kill_matrix import contained, cover, killers, table

OUTPUT = """
.F.FE
=== short test summary info ===
FAILED tests/ir/test_expr.py::test_sum[1-2] - assert 1 == 2
FAILED tests/ir/test_expr.py::test_sum[2-2] - assert 1 == 2
FAILED tests/cli/test_main.py::test_help
ERROR tests/cli/test_main.py::test_made - ValueError
"""
MATRICES = st.lists(st.frozensets(st.sampled_from("abcd")), max_size=8).map(
    lambda rows: [{"killers": sorted(row)} for row in rows]
)


def test_killers_are_functions_once() -> None:
    assert killers(OUTPUT) == ["cli/test_main.py::test_help", "cli/test_main.py::test_made", "ir/test_expr.py::test_sum"]
    assert killers("1 passed") == []


@given(MATRICES)
def test_without_the_contained_all_is_still_noticed(rows: list[dict[str, list[str]]]) -> None:
    found = contained(rows)
    names = {name for row in rows for name in row["killers"]}
    for row in rows:
        assert not row["killers"] or not set(row["killers"]) <= found.keys()
    for name, other in itertools.permutations(names, 2):
        included = all(other in row["killers"] for row in rows if name in row["killers"])
        assert not included or name in found or other in found


@given(MATRICES)
def test_a_cover_notices_all_and_each_of_it_adds_something(rows: list[dict[str, list[str]]]) -> None:
    found = cover(rows)
    killed = [set(row["killers"]) for row in rows if row["killers"]]
    assert all(killers_of & found.keys() for killers_of in killed)
    assert sum(found.values()) == len(killed) and all(found.values())
    assert {row.copy().pop() for row in killed if len(row) == 1} <= found.keys()


def test_a_page_counts_by_room() -> None:
    row = {"line": 3, "function": "f", "operator": "and or", "old": "and", "new": "or"}
    text = table(
        [
            row | {"path": "tilec/ir/expr.py", "killers": ["a"]}, row | {"path": "tilec/ir/core.py", "killers": []},
            row | {"path": "tilec/link.py", "killers": ["a", "b"]},
        ]
    )  # fmt: skip
    assert "| tilec/ir | 2 | 1 | 0.5 | 1 |" in text and "| tilec/link | 1 | 1 | 2 | 0 |" in text
    assert "| a | 2 |" in text and "| b | 1 |" in text
    assert "- `tilec/ir/core.py:3` `f`, and or" in text
