"""Range analysis and slices of what an index is computed from: marks of proven results and exchanges through scratch."""

from __future__ import annotations

import pytest

from tests.passes.builder import Access, Kernel
from tilec.ir import ops
from tilec.ir.core import Op, Value
from tilec.ir.ops.staging_ops import ScratchLoad, ScratchStore, SharedAlloc
from tilec.ir.types import ScratchType, TileType, i32
from tilec.passes.analysis.divisibility import aligned_ranges
from tilec.passes.analysis.relevance import deciding_ops, trusted_ops


@pytest.mark.parametrize("marked", [False, True])
def test_a_selected_sum_is_as_narrow_where_it_is_proven_to_fit(marked: bool) -> None:
    """`where(a > 4, a + b, 5)` with `a` in 0..7 and `b` in 0..3 lies in 5..10. A mark of the sum only adds knowledge."""
    k = Kernel(8, 4)
    a, b = k.bid(0), k.bid(1)
    total = k.add(a, b)
    total.fits = marked
    chosen = k.emit(ops.Select(operands=[k.op("gt", a, 4), total, k.c(5)]), TileType(i32)).result
    facts = aligned_ranges(k.function)
    assert (facts[total].low, facts[total].high) == (0, 10)
    assert (facts[chosen].low, facts[chosen].high) == (5, 10)


def converted_index() -> tuple[Kernel, Value, Op]:
    """A kernel whose threads exchange an index tile through scratch: the product that is exchanged, and the access."""
    k = Kernel(1)
    out = k.tensor("out", Access.INOUT, "N")
    indices = k.mul(k.iota(32), k.spread(k.c(2), (32,)))
    alloc = SharedAlloc()
    k.emit_region(alloc)
    alloc.define(ScratchType(128))
    k.emit(ScratchStore(operands=[alloc.result, indices], steps=(1,)))
    taken = k.emit(ScratchLoad(operands=[alloc.result], steps=(1,)), indices.tile).result
    return k, indices, k.scatter(out, taken, mask=True)


def test_an_index_is_followed_through_scratch() -> None:
    k, indices, _ = converted_index()
    assert indices.owner in deciding_ops(k.function)


def test_an_unsafe_index_is_followed_through_scratch() -> None:
    """Nothing proves the product, which is only the index of an `unsafe` access."""
    k, indices, access = converted_index()
    assert isinstance(access, ops.Scatter)
    access.unsafe = 0
    assert indices.owner in trusted_ops(k.function)
    assert indices.owner not in deciding_ops(k.function)
