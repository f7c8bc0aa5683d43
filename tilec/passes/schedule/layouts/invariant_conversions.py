"""Hoists conversions through shared memory out of loops that convert the same tile in every iteration.

In: a function with explicit conversions, without products, whose operands staging has placed. Out: the same, in which a
conversion of a tile that does not depend on the iteration precedes the loop, with what computes the tile. Two conversions of
one tile to one layout become one. Each one that moves saves a store, a load and two barriers in every iteration.

A conversion has no effect besides its result, so it may run where the loop makes no iteration. All threads of a block reach the
loop together, so also the barriers before it. The result stays in registers during the loop: a loop gains at most
`MOST_REGISTERS` for each thread.
"""

from __future__ import annotations

from typing import Final

from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.layouts.conversion_scratch import conversion_bytes
from tilec.ir.layouts.layout import Layout
from tilec.ir.ops import For, Mma
from tilec.ir.ops.staging_ops import GroupProduct, Relayout, StageCopy
from tilec.passes.schedule.simplify.invariant_loads import computation

MOST_REGISTERS: Final = 32
REGISTER_BYTES: Final = 4


def hoist(function: Function) -> Function:
    """Move the conversions, in place."""
    if not any(isinstance(op, Mma | GroupProduct | StageCopy) for op in function.body.walk()):
        _block(function.body, 32 * function.num_warps)
    return function


def _block(block: Block, threads: int) -> None:
    """Innermost loops first: a conversion leaves one loop after the other."""
    ops: list[Op] = []
    for op in block.ops:
        for region in op.regions:
            _block(region, threads)
        if isinstance(op, For):
            ops += _moved(op, threads)
        ops.append(op)
    block.ops = ops


def _moved(loop: For, threads: int) -> list[Op]:
    """Remove from a loop's body, and return in order, the conversions that may precede it, with what computes their tiles."""
    body = loop.regions[0]
    inside = {result: op for op in body.ops for result in op.results} | dict.fromkeys(body.arguments, None)
    room, moving = MOST_REGISTERS, set[Op]()
    equal: dict[Value, Value] = {}  # conversions to what stands for them
    known: dict[tuple[Value, Layout | None], Value] = {}
    for op in body.ops:
        if not isinstance(op, Relayout) or not conversion_bytes(op, threads):
            continue
        needed = computation(op.operands, inside)
        if needed is None:
            continue
        key = (op.operands[0], op.result.layout)
        if key in known:
            equal[op.result] = known[key]
            moving.add(op)
            continue
        added = {op, *needed} - moving
        registers = sum(_registers(result) for one in added for result in one.results)
        if registers <= room:
            room -= registers
            moving |= added
            known[key] = op.result
    for op in body.walk():
        op.operands = [equal.get(value, value) for value in op.operands]
    found = [op for op in body.ops if op in moving and op.results[0] not in equal]
    body.ops = [op for op in body.ops if op not in moving]
    return found


def _registers(value: Value) -> int:
    """Registers of a thread for a tile, or for a scalar."""
    elements = value.layout.num_registers if value.layout is not None else 1
    return -(-elements * value.tile.dtype.bytes // REGISTER_BYTES)
