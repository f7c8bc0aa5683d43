"""Combines what a loop adds to one box of an atomic tensor in registers first, and adds it to the tensor once after the loop.

In: a proven function without products, whose statements all threads of a block execute. Out: the same, in which an `atomic`
whose offsets do not depend on the loop became a carried value that starts neutral, and an `atomic` after the loop: the sums
over rows of a backward pass, which then cost memory one update a block.

Legal for kinds that are commutative and associative (`private_ops.can_be_private`), where no other operation touches the
tensor: nothing then depends on when it is updated. A loop without iterations leaves the tensor as it is, bit by bit, so the
`atomic` is in a branch unless the ranges of the bounds show an iteration; the proof of its offsets holds there. Sums of f32 are
rounded in another grouping, as they may be (`tilec/ir/SEMANTICS.md`, "Atomics"). The elements stay in registers during the
loop, so they are few (`MOST_ELEMENTS` for a thread in all).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.ops import AtomicUpdate, Binary, Compare, Constant, For, If, Mma, Yield
from tilec.ir.ops.private_ops import can_be_private, neutral
from tilec.ir.ops.staging_ops import GroupProduct, StageCopy
from tilec.ir.types import TileType, boolean
from tilec.passes.analysis.ranges import Range, value_ranges
from tilec.passes.schedule.simplify.invariant_loads import computation

MOST_ELEMENTS: Final = 32


def combine(function: Function) -> Function:
    """Rewrite the loops, in place."""
    ops = list(function.body.walk())
    if any(isinstance(op, Mma | GroupProduct | StageCopy) for op in ops):
        return function
    touched = Counter(tensor for op in ops for tensor, _ in op.touched())
    alone = {op for op in ops if isinstance(op, AtomicUpdate) and touched[op.tensor] == 1 and _commutes(op)}
    if alone:
        _block(function, function.body, alone, value_ranges(function))
    return function


def _commutes(op: AtomicUpdate) -> bool:
    return op.unsafe is None and can_be_private(op.kind, op.tensor.tensor.dtype)


def _block(function: Function, block: Block, alone: set[AtomicUpdate], facts: Mapping[Value, Range]) -> None:
    """Innermost loops first: an `atomic` leaves one loop after the other."""
    ops: list[Op] = []
    for op in block.ops:
        for region in op.regions:
            _block(function, region, alone, facts)
        if isinstance(op, For):
            before, after = _combined(function, op, alone, facts)
            ops += [*before, op, *after]
        else:
            ops.append(op)
    block.ops = ops


def _combined(
    function: Function, loop: For, alone: set[AtomicUpdate], facts: Mapping[Value, Range]
) -> tuple[list[Op], list[Op]]:
    """What comes before and after a loop, whose body and carried values change."""
    body = loop.regions[0]
    before: list[Op] = []
    after: list[Op] = []
    if any(value.type == TileType(boolean) for value in body.arguments):
        return before, after  # a condition that ends the loop early must see that nothing else changes
    room = MOST_ELEMENTS * 32 * max(1, function.num_warps)
    for op in [op for op in body.ops if isinstance(op, AtomicUpdate) and op in alone]:
        inside = {result: inner for inner in body.ops for result in inner.results} | dict.fromkeys(body.arguments, None)
        needed = computation(op.offsets, inside)
        if needed is None or op.tile.tile.size > room:
            continue
        room -= op.tile.tile.size
        before += [inner for inner in body.ops if inner in needed]
        before.append(start := _made(Constant(value=neutral(op.kind, op.tile.tile.dtype), loc=op.loc), op.tile.tile))
        argument = body.add_argument(op.tile.type)
        total = _made(Binary(kind=op.kind, operands=[argument, op.tile], loc=op.loc), op.tile.tile)
        body.ops = [total if inner is op else inner for inner in body.ops if inner not in needed]
        body.ops[-1].operands.append(total.result)
        loop.operands.append(start.result)
        loop.results.append(Value(op.tile.type, "", loop))
        op.operands = [op.target, loop.results[-1], *op.offsets]
        after.append(op)
    if after and not facts[loop.lower].high < facts[loop.upper].low:
        test = _made(Compare(kind="lt", operands=[loop.lower, loop.upper], loc=loop.loc), TileType(boolean))
        after = [test, If(operands=[test.result], regions=[Block(ops=[*after, Yield()]), Block(ops=[Yield()])], loc=loop.loc)]
    return before, after


def _made(op: Op, type_: TileType) -> Op:
    op.define(type_)
    return op
