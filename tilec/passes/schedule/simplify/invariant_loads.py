"""Hoists loads out of loops that read the same box in every iteration.

In: a proven function without products, whose statements all threads of a block execute. Out: the same with such loads, and the
arithmetic of their offsets, before the loop. LLVM leaves them inside: with launches that overlap, a load is inline PTX.

A load moves only if nothing can change what it reads and it stays inside its tensor where the loop makes no iteration:

- its tensor is `In`, so that no kernel in flight writes it (the launch contract keeps written tensors apart from all others);
- its offsets do not depend on the loop;
- the loop makes an iteration, by the ranges of its bounds, so that the proof of the load covers it; or the offsets are
  constants, and the box lies inside constant extents or the load is padded.

Elements that stay in registers during the loop are few (`MOST_ELEMENTS` for a thread in all).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tilec.ir.core import Access, Block, Effect, Function, Op, Value
from tilec.ir.ops import Constant, For, Load, Mma
from tilec.ir.ops.staging_ops import GroupProduct, StageCopy
from tilec.passes.analysis.ranges import Range, value_ranges

MOST_ELEMENTS: Final = 16


def hoist(function: Function) -> Function:
    """Move the loads, in place."""
    ops = list(function.body.walk())
    if not any(isinstance(op, For) for op in ops) or any(isinstance(op, Mma | GroupProduct | StageCopy) for op in ops):
        return function
    _block(function, function.body, value_ranges(function))
    return function


def _block(function: Function, block: Block, facts: Mapping[Value, Range]) -> None:
    """Innermost loops first: a load leaves one loop after the other."""
    ops: list[Op] = []
    for op in block.ops:
        for region in op.regions:
            _block(function, region, facts)
        if isinstance(op, For):
            ops += _moved(function, op, facts)
        ops.append(op)
    block.ops = ops


def _moved(function: Function, loop: For, facts: Mapping[Value, Range]) -> list[Op]:
    """Remove from a loop's body, and return in order, the loads that may precede it, with what computes their offsets."""
    body = loop.regions[0]
    inside = {result: op for op in body.ops for result in op.results} | dict.fromkeys(body.arguments, None)
    iterates = facts[loop.lower].high < facts[loop.upper].low
    room = MOST_ELEMENTS * 32 * max(1, function.num_warps)
    moving: set[Op] = set()
    for op in body.ops:
        if not isinstance(op, Load) or op.result.tile.size > room or not _reads_the_same(function, op):
            continue
        needed = computation(op.operands, inside)
        if needed is None or not (iterates or _is_safe_anywhere(op)):
            continue
        room -= op.result.tile.size
        moving |= {op, *needed}
    found = [op for op in body.ops if op in moving]
    body.ops = [op for op in body.ops if op not in moving]
    return found


def _reads_the_same(function: Function, load: Load) -> bool:
    return load.unsafe is None and function.parameter_of(load.source).access is Access.IN


def computation(offsets: Sequence[Value], inside: Mapping[Value, Op | None]) -> set[Op] | None:
    """The operations of a loop's body that compute the offsets; None if these depend on the iteration or on memory. `inside`:
    the operation of each value of the body, None for its arguments."""
    needed: set[Op] = set()
    pending = list(offsets)
    while pending:
        value = pending.pop()
        if value not in inside:
            continue
        op = inside[value]
        if op is None or op.effect is not Effect.NONE or op.regions:
            return None
        if op not in needed:
            needed.add(op)
            pending += op.operands
    return needed


def _is_safe_anywhere(load: Load) -> bool:
    """Whether the load stays inside its tensor although nothing is proven about where it is: at constants, inside constant
    extents or padded."""
    inside = load.pad is not None
    for offset, extent, dim in zip(load.offsets, load.result.tile.shape, load.source.tensor.dims, strict=True):
        if not isinstance(offset.owner, Constant):
            return False
        first = int(offset.owner.value)
        if not inside and (dim.constant is None or not 0 <= first <= dim.constant - extent):
            return False
    return True
