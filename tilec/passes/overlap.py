"""Let a kernel begin while the kernels before it end.

Every kernel waits for its predecessors itself, before its first access to memory, so that its launch may overlap them. Where
a loop of known length streams through rows of an input that belong to this block alone, as a linear layer does with its
weight, the block asks for the first of them before it waits: the predecessors' tails then cost no bandwidth.
"""

from __future__ import annotations

from math import prod

from tilec.ir.core import Access, Effect, Function, Op, Value
from tilec.ir.ops import BlockId, Constant, For, Load
from tilec.ir.ops_launch import Prefetch, WaitPrior
from tilec.ir.types import TileType
from tilec.passes.divisibility import aligned_ranges

PREFETCH_BYTES = 8192
"""Most bytes a block asks for ahead: the blocks that fit the chip at once (some 2,000) then ask for a fraction of the L2."""


def overlap(function: Function) -> Function:
    """Insert `wait_prior` and what may go before it, in place. Runs on canonical IR, where offsets that do not change in a loop
    are known before it."""
    early = launch_values(function)
    start = [op for op in function.body.ops if op.results and set(op.results) <= early]
    rest = [op for op in function.body.ops if not (op.results and set(op.results) <= early)]
    function.body.ops = [*start, *_prefetches(function, start, early), WaitPrior(), *rest]
    return function


def launch_values(function: Function) -> set[Value]:
    """Scalars that follow from launch values and the block's place alone."""
    known = {parameter.value for parameter in function.parameters if parameter.access is None}
    for op in function.body.ops:
        scalar = all(isinstance(value.type, TileType) and not value.type.rank for value in op.results)
        if op.results and scalar and op.effect is Effect.NONE and not op.regions and set(op.operands) <= known:
            known |= set(op.results)
    return known


def _prefetches(function: Function, start: list[Op], early: set[Value]) -> list[Op]:
    own = _of_this_block(start)
    facts = aligned_ranges(function)
    found: list[Op] = []
    for loop in function.body.ops:
        if not isinstance(loop, For) or not all(isinstance(value.owner, Constant) for value in loop.operands[:3]):
            continue
        for load in loop.regions[0].ops:
            if not isinstance(load, Load) or function.parameter_of(load.source).access is not Access.IN:
                continue
            *rows, column = load.offsets
            fact = facts[column]
            extent = load.source.tensor.dims[-1].constant
            if extent is None or fact.low != 0 or not own & set(rows) or not set(rows) <= early:
                continue
            shape = list(load.result.tile.shape)
            length = min(extent, PREFETCH_BYTES // (prod(shape[:-1]) * load.result.tile.dtype.bytes))
            if length >= shape[-1]:
                zero = Constant(value=0)
                zero.define(column.type)
                found += [zero, Prefetch(operands=[load.source, *rows, zero.result], shape=(*shape[:-1], length))]
    return found


def _of_this_block(start: list[Op]) -> set[Value]:
    """Values that differ from block to block."""
    found: set[Value] = set()
    for op in start:
        if isinstance(op, BlockId) or not found.isdisjoint(op.operands):
            found |= set(op.results)
    return found
