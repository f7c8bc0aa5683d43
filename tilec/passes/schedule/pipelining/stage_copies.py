"""The asynchronous copies of the operands of one iteration into a stage of a ring, unless the loop ends before it."""

from __future__ import annotations

from tilec.ir.clone import clone
from tilec.ir.core import Block, Value
from tilec.ir.ops import Cast, Constant, For, If, Yield
from tilec.ir.ops.staging_ops import AsyncCopy
from tilec.ir.ops.sync_ops import Acquire, Commit
from tilec.ir.types import TileType, i32
from tilec.passes.schedule.pipelining.staged_loads import Operand
from tilec.passes.schedule.pipelining.staged_products import Emitter


def prologue_copies(out: Emitter, loop: For, operands: list[Operand], ring: Value, count: int) -> None:
    """Start the copies of the first `count` iterations, those that the loop has."""
    for ahead in range(count):
        out.add(Acquire(operands=[ring]))
        copies_if_in_range(out, loop, operands, loop.lower, ahead, out.number(ahead))
        out.add(Commit(operands=[ring]))


def copies_if_in_range(
    out: Emitter, loop: For, operands: list[Operand], position: Value, ahead: int, ring_stage: Value
) -> None:
    """Start the copies of the iteration `ahead` steps after `position` unless the loop ends before it."""
    # In i64, because the sum may leave i32 if the loop ends near that limit.
    distance = out.binary("mul", out.widen(loop.step), out.number(ahead, wide=True))
    following = out.binary("add", out.widen(position), distance)
    condition = out.compare("lt", following, out.widen(loop.upper))
    then = Emitter()
    step = loop.step.owner
    if isinstance(step, Constant) and step.value * ahead > i32.integer_range()[1]:
        variable = then.add(Cast(operands=[following]), TileType(i32))
    else:  # the product may wrap, so ranges know nothing of it; the sum is still right modulo 2^32
        variable = then.binary("add", position, then.binary("mul", loop.step, then.number(ahead)))
    variable.fits = True  # it lies between `position` and the end of the loop
    _copies(then, loop, operands, variable, ring_stage)
    then.add(Yield())
    out.add(If(operands=[condition], regions=[Block(ops=then.ops), Block(ops=[Yield()])]))


def _copies(out: Emitter, loop: For, operands: list[Operand], variable: Value, ring_stage: Value) -> None:
    mapping = {loop.regions[0].arguments[0]: variable}
    needed = {op for operand in operands for op in operand.chain}
    out.ops += clone([op for op in loop.regions[0].ops if op in needed], mapping)  # proofs hold: the loop has this iteration
    for operand in operands:
        assert operand.buffer is not None
        offsets = [mapping.get(value, value) for value in operand.load.offsets]
        out.add(
            AsyncCopy(
                operands=[operand.load.source, operand.buffer, ring_stage, *offsets],
                vector=operand.vector,
                row_axis=operand.row_axis,
                sub_tiles=operand.sub_tiles,
                gap=operand.gap,
                pad=operand.load.pad is not None,
                whole=operand.whole,
                unsafe=operand.load.unsafe,
                loc=operand.load.loc,
            )
        )
