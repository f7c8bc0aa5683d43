"""Which operations decide where memory is touched: all that an index, a loop bound or a branch condition is computed from."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.ops import AtomicUpdate, For, Gather, If, Load, Scatter, Store


def deciding_ops(function: Function) -> list[Op]:
    """Those operations and all loops, in program order."""
    found: set[Op] = set()
    pending: list[Value] = []
    for op in function.body.walk():
        pending += _roots(op)
        if isinstance(op, For):
            found.add(op)
    loops = {op.regions[0]: op for op in function.body.walk() if isinstance(op, For)}
    seen: set[Value] = set()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        pending += _sources(loops, value)
        if isinstance(value.owner, Op):
            found.add(value.owner)
    return [op for op in function.body.walk() if op in found]


def _roots(op: Op) -> list[Value]:
    match op:
        case Load() | Store() | AtomicUpdate():
            return [] if op.unsafe is not None else op.offsets
        case Gather() | Scatter():
            return [] if op.unsafe is not None else op.indices
        case For():
            return op.operands[:3]
        case If():
            return op.operands[:1]
        case _:
            return []


def _sources(loops: dict[Block, For], value: Value) -> Iterator[Value]:
    """Values that this one is computed from. What a memory access yields does not depend on arithmetic we must check."""
    owner = value.owner
    if isinstance(owner, For):
        place = owner.results.index(value)
        yield from (owner.initial[place], owner.regions[0].ops[-1].operands[place])
    elif isinstance(owner, If):
        yield owner.operands[0]
        yield from (region.ops[-1].operands[owner.results.index(value)] for region in owner.regions)
    elif isinstance(owner, Op):
        if not isinstance(owner, Load | Gather):
            yield from (operand for operand in owner.operands if not operand.tile.dtype.is_float)
    elif owner is not None and owner in loops:
        loop = loops[owner]
        place = owner.arguments.index(value)
        if place:
            yield from (loop.initial[place - 1], owner.ops[-1].operands[place - 1])
