"""What range analysis concludes from the constants of a kernel, and from conditions on a number that is spread over a tile."""

from __future__ import annotations

import pytest

from tests.passes.builder import Kernel
from tilec.ir import ops
from tilec.ir.core import Block, Value
from tilec.ir.facts.range_facts import Range
from tilec.ir.types import TileType, f32, i32
from tilec.passes.analysis.ranges import value_ranges


def counter(k: Kernel, limit: int) -> Value:
    """A value that a loop counts up from 0: `c = minimum(c + 1, limit)`."""
    op = ops.For(operands=[k.c(0), k.dim("N"), k.c(1), k.c(0)], variable="i", regions=[Block()])
    op.regions[0].add_argument(TileType(i32), "i")
    carried = op.regions[0].add_argument(TileType(i32), "c")
    k.emit_region(op)
    outer, k.block = k.block, op.regions[0]
    k.emit_yield(k.op("min", k.add(carried, 1), limit))
    k.block = outer
    op.define(TileType(i32))
    return op.results[0]


@pytest.mark.parametrize("numbers", [(), (40.5,), (2.0, 7.0, 33.0), (float("inf"), float("nan"))])
def test_floats_of_a_kernel_do_not_change_the_range_of_a_counter(numbers: tuple[float, ...]) -> None:
    k = Kernel("N")
    for number in numbers:
        k.emit(ops.Constant(value=number), TileType(f32))
    found = counter(k, 100)
    assert value_ranges(k.function)[found] == Range(0, 100)


def above_zero(k: Kernel, number: Value, shape: tuple[int, ...], *, spread: bool) -> Value:
    """`where(number > 0, number - 1, 3)` for every element of a tile. The number is spread over the tile anew for the condition
    and for the arm; or, unless `spread`, the condition is on the number and is spread itself."""
    if spread:
        condition = k.op("gt", k.spread(number, shape), k.spread(k.c(0), shape))
    else:
        condition = k.spread(k.op("gt", number, 0), shape)
    less = k.op("sub", k.spread(number, shape), k.spread(k.c(1), shape))
    chosen = ops.Select(operands=[condition, less, k.spread(k.c(3), shape)])
    return k.emit(chosen, TileType(i32, shape)).result


@pytest.mark.parametrize("spread", [True, False])
def test_a_condition_on_a_number_is_known_wherever_the_number_is_broadcast(spread: bool) -> None:
    k = Kernel(10)
    found = above_zero(k, k.bid(), (4,), spread=spread)
    assert value_ranges(k.function)[found] == Range(0, 8)
