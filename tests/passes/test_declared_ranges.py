"""`values` clauses reach computed scalars in proofs, but not the facts that code generation relies on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilec.diagnostics.diagnostic import CompileError
from tilec.frontend import load_kernel
from tilec.ir.core import Function
from tilec.ir.ops import For, Load
from tilec.ir.types import i32
from tilec.passes.analysis.declared_ranges import declared_ranges, sources
from tilec.passes.analysis.ranges import value_ranges
from tilec.passes.prover import prove

KERNEL = """import tilec
from tilec import Dim, In, Out, bid, f32, grid, i32, load, store, values, zeros

class N(Dim):
    pass

@tilec.kernel
def k(ids: In[i32, N], other: In[i32, N], x: In[f32, 10], out: Out[f32, N, 1]):
    grid(N)
    values(ids, {low}, {high})
    b = bid(0)
    c = load(ids, {index})
    total = zeros((1,), f32)
    for turn in range(3):
        total = total + load(x, c, shape=(1,))
        c = 9 - c
    store(out, (b, 0), total.reshape((1, 1)))
"""


def kernel(tmp_path: Path, low: int, high: int, index: str = "b") -> Function:
    path = tmp_path / "k.py"
    path.write_text(KERNEL.format(low=low, high=high, index=index))
    return load_kernel(path, {}, root=tmp_path)


def test_a_carried_scalar_stays_in_the_range_of_declared_data(tmp_path: Path) -> None:
    function = kernel(tmp_path, 1, 9)
    found = {fact for o in prove(function).obligations if o.property == "bounds" and "x" in o.subject for fact in o.facts}
    assert found == {"values(ids, 1, 9)"}
    (loop,) = (op for op in function.body.walk() if isinstance(op, For))
    carried = next(a for a in loop.regions[0].arguments[1:] if a.tile.dtype == i32)
    assert (declared_ranges(function)[carried].low, declared_ranges(function)[carried].high) == (1, 8)
    assert sources(carried, function) == {"ids", "x", "N"}, "all that is read in the loop; the block id"


def test_marks_of_machine_code_do_not_depend_on_declarations(tmp_path: Path) -> None:
    function = kernel(tmp_path, 1, 9)
    load = next(op for op in function.body.walk() if isinstance(op, Load) and op.result.tile.dtype == i32)
    assert value_ranges(function)[load.result].high == 2**31 - 1


@pytest.mark.parametrize(("low", "high"), [(1, 11), (-1, 9)])
def test_too_wide_a_declaration_is_refused(low: int, high: int, tmp_path: Path) -> None:
    with pytest.raises(CompileError) as caught:
        prove(kernel(tmp_path, low, high))
    assert {d.code for d in caught.value.diagnostics} == {"E0301"}


def test_a_pad_is_not_declared(tmp_path: Path) -> None:
    with pytest.raises(CompileError):
        prove(kernel(tmp_path, 1, 9, "b + 1, pad=20"))
    prove(kernel(tmp_path, 1, 9, "b + 1, pad=0"))


def test_another_tensor_is_not_declared(tmp_path: Path) -> None:
    path = tmp_path / "k.py"
    path.write_text(KERNEL.format(low=1, high=9, index="b").replace("load(ids", "load(other"))
    with pytest.raises(CompileError):
        prove(load_kernel(path, {}, root=tmp_path))


SQUARE = """import tilec
from tilec import Dim, In, Out, bf16, bid, grid, i16, i32, i64, load, maximum, minimum, store

class N(Dim):
    pass

@tilec.kernel
def k(d: In[i64, N], e: In[i16, N], x: In[bf16, N, {extent}], out: Out[bf16, N, 4]):
    grid(N)
    b = bid(0)
    d1 = load(e, b)
    d3 = load(d, b)
    one = ((d3 >> 62) * i64(minimum(maximum(d1, -1), 2))).astype(i16)
    other = ((d3 >> 62) * i64(minimum(maximum(d1, -1), 2))).astype(i16)
    store(out, (b, 0), load(x, offset=(b, (one * other).astype(i32) + 8), shape=(1, 4)))
"""


@pytest.mark.parametrize(("extent", "right"), [(28, True), (27, False)])
def test_ranges_decide_systems_that_products_make_hard(extent: int, right: bool, tmp_path: Path) -> None:
    """`one` and `other` are in -4..2. Ranges do not know that their product is a square, so they give it -8..16."""
    path = tmp_path / "k.py"
    path.write_text(SQUARE.format(extent=extent))
    function = load_kernel(path, {}, root=tmp_path)
    if right:
        assert prove(function).obligations
        return
    with pytest.raises(CompileError):
        prove(function)


COUNTDOWN = """import tilec
from tilec import Dim, In, Out, bid, f32, grid, i32, load, requires, store, where, zeros

class N(Dim):
    pass

@tilec.kernel
def k(start: i32, x: In[f32, 8], out: Out[f32, N, 1]):
    grid(N)
    requires({condition})
    b = bid(0)
    c = start
    total = zeros((1,), f32)
    for turn in range(N):
        total = total + load(x, c, shape=(1,))
        c = where(c > 0, c - 1, 4)
    store(out, (b, 0), total.reshape((1, 1)))
"""


@pytest.mark.parametrize(
    ("condition", "right"),
    [("start >= 0, start < 8", True), ("start >= 0, start <= 8", False), ("start >= -1, start < 8", False), ("N < 8", False)],
)
def test_a_carried_scalar_stays_in_the_range_of_preconditions(condition: str, right: bool, tmp_path: Path) -> None:
    path = tmp_path / "k.py"
    path.write_text(COUNTDOWN.format(condition=condition))
    function = load_kernel(path, {}, root=tmp_path)
    if not right:
        with pytest.raises(CompileError):
            prove(function)
        return
    bounds = [o for o in prove(function).obligations if o.property == "bounds" and "x" in o.subject]
    assert {o.rung for o in bounds} == {"launch"}
    assert {text for o in bounds for text in o.facts} >= {"requires(start >= 0) and requires(start < 8)"}
