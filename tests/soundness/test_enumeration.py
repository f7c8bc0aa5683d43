"""The prover's oracle finds each kind of fault, and none in correct kernels."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.campaign import first
from tests.soundness.assemble_ir import assemble
from tests.soundness.description import Assign, Branch, Description, Expr, LoadIndex, Loop, Move, Pick, Statement, Tensor
from tests.soundness.enumeration import Launch, OverBudget
from tests.soundness.memory import Memory, NoSuchLaunch
from tests.soundness.schedules import SCHEDULES
from tests.soundness.verdict import examine, search
from tilec.frontend import load_kernel
from tilec.passes.prover.aliasing import launch_checks


def faults(kernel: Description, **sizes: int) -> set[str]:
    function = assemble(kernel)
    return {fault.kind for fault in Launch(function, sizes, Memory(function, sizes, 0)).run()}


def rows(store: Expr, grid: Expr = "N", access: str = "Out", *before: Statement) -> Description:
    body = [*before, Move("store", "out", [store], [1])]
    return Description("rows", [grid], [Tensor("out", access, ["N"])], body)


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        (rows(("+", "b0", 1)), "bounds"),
        (rows(("//", "b0", 2)), "race"),
        (rows("b0", ("-", "N", 1)), "coverage"),
        (rows("b0", "N", "Out", Move("store", "out", ["b0"], [1])), "once"),
        (rows("b0", "N", "Scratch", Move("load", "out", ["b0"], [1])), "order"),
        (rows("b0", "N", "InOut", Move("load", "out", [0], [1])), "race"),
        (rows(("//", "b0", ("-", "N", 4))), "divisor"),
        (rows("b0", "N", "Out", Loop("i", 0, 4, ("-", "N", 4), [])), "divisor"),
        (rows(("//", ("*", ("*", "b0", 1 << 20), 1 << 20), 1 << 30)), "wrap"),
    ],
)
def test_each_kind_of_fault_is_found(kernel: Description, kind: str) -> None:
    assert kind in faults(kernel, N=4)


def test_a_scatter_that_folds_lanes_is_found() -> None:
    pick = Pick("scatter", "x", [("//", "lane", 2)], 4)
    kernel = Description("fold", [1], [Tensor("x", "InOut", ["N"])], [pick])
    assert faults(kernel, N=2) == {"once"}


def test_a_stale_index_after_a_join_is_found() -> None:
    body: list[Statement] = [
        Assign("at", 0),
        Branch(("==", "b0", 1), [Assign("at", "N")], [Assign("at", "b0")]),
        Move("load", "x", ["at"], [1]),
    ]
    kernel = Description("join", ["N"], [Tensor("x", "In", ["N"])], body)
    assert faults(kernel, N=1) == set()
    assert faults(kernel, N=2) == {"bounds"}


PROMISE = """import tilec
from tilec import Dim, In, InOut, arange, bid, cdiv, ensures, gather, grid, i32, scatter, values

class N(Dim):
    pass

@tilec.kernel
def k(x: In[i32, N], out: InOut[i32, N]):
    grid(cdiv(N, 2))
    values(x, 0, 3)
    {before}
    ensures(out, {promise})
    e = bid(0) * 2 + arange(2)
    scatter(out, {index}, {value}, mask=True)
"""


@pytest.mark.parametrize(
    ("promise", "value", "index", "before", "kinds"),
    [
        ("0, 3", "gather(x, e, pad=9)", "e", "", set[str]()),
        ("0, 2", "gather(x, e, pad=9)", "e", "", {"promise"}),
        ("0, 3", "gather(x, e, pad=9)", "e // 2 * 2 + 1", "", {"promise", "once"}),
        ("0, N, distinct=True", "e", "N - 1 - e", "", set[str]()),
        ("0, N, sorted=True", "e", "e", "", set[str]()),
        ("0, N, sorted=True", "e", "N - 1 - e", "", {"promise"}),
        ("0, N, distinct=True", "e // 2", "e", "", {"promise"}),
        ("0, 3, above=out", "gather(out, e, pad=0) + gather(x, e, pad=0)", "e", "values(out, 0, 9)", set[str]()),
        ("1, 3, above=out", "gather(out, e, pad=0) + gather(x, e, pad=0)", "e", "values(out, 0, 9)", {"promise"}),
        ("0, 9", "i32(0) * e", "e * 2", "values(out, 0, 9)", set[str]()),
        ("0, 9", "i32(0) * e", "e * 2", "values(out, 0, 10)", {"promise"}),
    ],
)
def test_broken_promises_are_found(tmp_path: Path, promise: str, value: str, index: str, before: str, kinds: set[str]) -> None:
    (tmp_path / "k.py").write_text(
        PROMISE.format(promise=promise, value=value, index=index, before=before or "values(x, 0, 3)")
    )
    function, found = load_kernel(tmp_path / "k.py", {}, root=tmp_path), set[str]()
    for seed in range(30):
        found |= {fault.kind for fault in Launch(function, {"N": 6}, Memory(function, {"N": 6}, seed)).run()}
    assert found == kinds


ROWS = """import tilec
from tilec import Dim, In, Out, arange, bid, ensures, grid, i32, load, store, values

class N(Dim):
    pass

@tilec.kernel
def k(x: In[i32, N, 2], out: Out[i32, N, 2]):
    grid(N)
    values(x, 0, 3{flags})
    ensures(out, 0, {high}, distinct_in_rows=True)
    store(out, (bid(0), 0), {value})
"""


@pytest.mark.parametrize(
    ("flags", "value", "high", "kinds"),
    [
        (", distinct_in_rows=True", "load(x, (bid(0), 0), shape=(1, 2))", 3, set[str]()),
        (", distinct_in_rows=True", "load(x, (bid(0), 0), shape=(1, 2)) // 2", 3, {"promise"}),
        ("", "load(x, (bid(0), 0), shape=(1, 2))", 3, {"promise"}), ("", "arange(2)[None, :]", 2, set[str]()),
        ("", "arange(2)[None, :]", 1, {"promise"}),
    ],
)  # fmt: skip
def test_equal_numbers_of_a_row_are_found(tmp_path: Path, flags: str, value: str, high: int, kinds: set[str]) -> None:
    """Rows of one launch share numbers. Contents that are declared to differ in each row do: two of three numbers."""
    (tmp_path / "k.py").write_text(ROWS.format(flags=flags, value=value, high=high))
    function, found, shared = load_kernel(tmp_path / "k.py", {}, root=tmp_path), set[str](), 0
    for seed in range(20):
        memory = Memory(function, {"N": 3}, seed)
        rows = [[memory.read("x", (row, column)) for column in range(2)] for row in range(3)]
        assert not flags or all(left != right for left, right in rows)
        shared += bool(set(rows[0]) & set(rows[1]))
        found |= {fault.kind for fault in Launch(function, {"N": 3}, memory).run()}
    assert found == kinds
    assert shared


def test_what_follows_a_loop_that_is_cut_is_no_run(tmp_path: Path) -> None:
    """The claim is true before each iteration and after the last, of which a sampled launch runs the first alone."""
    text = """import tilec
from tilec import Dim, InOut, grid, i32, invariant, requires, store

class N(Dim):
    pass

@tilec.kernel
def k(out: InOut[i32, N]):
    requires(N <= 1 << 20)
    grid(1)
    c = i32(0)
    for j in range(N):
        invariant(c == j)
        store(out, {index}, 1)
        c = j + 1
"""
    for index, kinds in (("c", set[str]()), ("c + 1", {"bounds"})):
        (tmp_path / "k.py").write_text(text.format(index=index))
        function = load_kernel(tmp_path / "k.py", {}, root=tmp_path)
        for size, only in ((9, None), (1 << 17, [(0,)])):
            faults = Launch(function, {"N": size}, Memory(function, {"N": size}, 0), only=only).run()
            assert {fault.kind for fault in faults} == (kinds if only is None else set[str]()), (index, size)


def test_contents_follow_what_the_kernel_declares() -> None:
    ids = Tensor("ids", "In", ["N"], True, 0, "V", True)
    body: list[Statement] = [LoadIndex("i", "ids", ["b0"]), Move("store", "out", ["i"], [1])]
    function = assemble(Description("slots", ["N"], [ids, Tensor("out", "InOut", ["V"])], body))
    for seed in range(20):
        sizes = {"N": 3, "V": 4}
        memory = Memory(function, sizes, seed)
        contents = [memory.read("ids", (k,)) for k in range(3)]
        assert len(set(contents)) == 3
        assert set(contents) <= {0, 1, 2, 3}
    with pytest.raises(NoSuchLaunch):
        Memory(function, {"N": 5, "V": 4}, 0)


def test_a_launch_over_budget_stops() -> None:
    function = assemble(rows("b0"))
    with pytest.raises(OverBudget):
        Launch(function, {"N": 10**9}, Memory(function, {"N": 10**9}, 0)).run()


@pytest.mark.parametrize("name", sorted(SCHEDULES))
@pytest.mark.parametrize("seed", first(1, range(3)))
def test_every_schedule_is_right(name: str, seed: int) -> None:
    make: Callable[[random.Random], Description] = SCHEDULES[name]
    function = assemble(make(random.Random(seed)))
    fault, sizes, count = search(function, launch_checks(function), seed, 12)
    assert count > 0
    # group_swizzle and flat_tiles may wrap i32 at sizes that only a `requires` excludes
    assert fault is None or fault.kind == "wrap", (fault, sizes)


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_every_schedule_is_proven(name: str) -> None:
    verdict = examine(SCHEDULES[name](random.Random(1)))
    assert verdict.kind in ("accepted", "refused_confirmed"), verdict.diagnostics
