"""Obligations of accesses: which ones an access has, what they count, and what a refusal suggests."""

from __future__ import annotations

import pytest

from tests.passes.builder import Access, Kernel, cdiv, const, sym
from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.ir import ops
from tilec.ir.core import Block
from tilec.ir.types import TileType, f32, i32, u8
from tilec.passes.prover import prove, terms
from tilec.passes.prover.index_terms import IndexTerms
from tilec.passes.prover.integer_sets import evaluator


def refused(kernel: Kernel) -> tuple[Diagnostic, ...]:
    with pytest.raises(CompileError) as caught:
        prove(kernel.function)
    return caught.value.diagnostics


def permuted(extent: int) -> Kernel:
    """One block that writes 16 elements of `out` in a permuted order."""
    k = Kernel(1)
    out = k.tensor("out", Access.OUT, extent)
    k.scatter(out, k.op("xor", k.iota(16), k.spread(k.c(5), (16,))))
    return k


def test_permuted_lanes_write_as_many_elements_as_there_are_lanes() -> None:
    assert "coverage" in {one.property for one in prove(permuted(16).function).obligations}
    for extent in (17, 18):
        assert {one.code for one in refused(permuted(extent))} == {"E0403"}


def distinct(count: int) -> Kernel:
    k = Kernel(1)
    k.tensor("ids", Access.IN, count, dtype=u8)
    k.values("ids", 0, count, distinct=True)
    return k


def test_as_many_distinct_numbers_fit_a_tensor_as_its_type_has() -> None:
    assert prove(distinct(255).function) and prove(distinct(256).function)
    assert {one.code for one in refused(distinct(257))} == {"E0307"}


def test_a_carried_value_has_grown_once_for_each_iteration() -> None:
    k = Kernel(1)
    k.tensor("shape", Access.IN, "A", "B", "S")
    out = k.tensor("out", Access.INOUT, "N")
    bounds = [k.dim("A"), k.dim("B"), k.dim("S"), k.c(7)]
    loop = ops.For(operands=bounds, variable="i", regions=[Block()])
    for name in ("i", "total"):
        loop.regions[0].add_argument(TileType(i32), name)
    k.emit_region(loop)
    k.block = loop.regions[0]
    k.emit_yield(k.add(loop.regions[0].arguments[1], 3))
    k.block = k.body
    loop.define(TileType(i32))
    k.store(out, loop.result, shape=(1,), mask=True)
    index = IndexTerms(k.function)
    after = index.scalar(loop.result)
    symbols = [index.symbol(name).atom for name in ("A", "B", "S")]
    for lower, upper, step in [(1, 9, 1), (1, 9, 3), (1, 8, 3), (1, 10, 3), (4, 5, 9), (5, 5, 1), (7, 2, 2)]:
        launch = {atom: value for atom, value in zip(symbols, (lower, upper, step), strict=True) if atom is not None}
        assert terms.evaluate(after, evaluator(launch)) == 7 + 3 * len(range(lower, upper, step)), (lower, upper, step)


@pytest.mark.parametrize(
    ("kind", "pad"), [("max", "-inf"), ("argmax", "-inf"), ("min", "inf"), ("argmin", "inf"), ("sum", "0")]
)
def test_the_suggested_pad_does_not_change_the_reduction(kind: str, pad: str) -> None:
    k = Kernel(cdiv(sym("N"), const(64)))
    x = k.tensor("x", Access.IN, "N")
    tile = k.load(x, k.mul(k.bid(), 64), shape=(64,))
    k.emit(ops.Reduce(kind=kind, axis=0, operands=[tile]), TileType(i32 if kind.startswith("arg") else f32))
    (found,) = refused(k)
    assert found.code == "E0301" and f"`pad={pad}`" in found.hint


def neighbours(trusted: bool) -> Kernel:
    """Each block writes the element after its own and reads its own."""
    k = Kernel("N")
    x = k.tensor("x", Access.INOUT, "N")
    store = k.store(x, k.add(k.bid(), 1), shape=(1,), mask=True)
    assert isinstance(store, ops.Store)
    store.unsafe = 0 if trusted else None
    k.load(x, k.bid(), shape=(1,))
    return k


def test_no_race_is_searched_between_an_unsafe_write_and_a_read() -> None:
    assert {one.code for one in refused(neighbours(trusted=False))} == {"E0402"}
    assert {o.rung for o in prove(neighbours(trusted=True).function).obligations if o.property == "race"} == {"unsafe"}


def test_a_box_that_may_leave_its_tensor_is_refused_once() -> None:
    """Only a clipped box may begin inside the range of its index type and end outside it. For another one, bounds say all."""
    k = Kernel("T")
    ids, x = k.tensor("ids", Access.IN, "T", dtype=i32), k.tensor("x", Access.IN, "N")
    k.load(x, k.scalar_load(ids, k.bid()), shape=(8,))
    assert {one.code for one in refused(k)} == {"E0301"}
