"""Gives a block its own part of an atomic tensor with few elements, in shared memory: a histogram's bins.

In: a function with layouts, whose operands have the layouts that operations need. Out: the same, in which `atomic_scatter` on
such a tensor updates a part of the block's own, which one atomic for each place adds to the tensor at the end
(`tilec.ir.ops.private_ops`):

    private_fill       before the first statement of the kernel that updates the tensor
    private_update     in place of each `atomic_scatter`
    private_flush      after the last such statement

Legal where the kernel touches the tensor by atomics of one kind at positions alone, of which no old value is used, whose
combination is commutative and associative: nothing in the block then depends on when the tensor itself is updated. Sums of
f32 are rounded in another order and grouping, as they may be (`tilec/ir/SEMANTICS.md`, "Atomics"). Not of `unsafe` accesses,
whose positions are not proven.

It pays where a block makes several updates for each element of the tensor, by the tiles and the loops of known length: each
element then costs memory one atomic a block, and positions that meet do so in the block. What is a loop of compare-and-swap in
shared memory, sums of f32 and all kinds of 64 bits, needs more updates than what is one instruction.

One part stays in shared memory over several statements, so a kernel whose warps have roles, a pair of blocks, and persistent
blocks keep their atomics.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Final

from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.layouts.shared_plan import scratch_offset, taken_bytes
from tilec.ir.ops import AtomicScatter
from tilec.ir.ops.private_ops import PrivateFill, PrivateFlush, PrivateUpdate, can_be_private, part_bytes
from tilec.ir.ops.staging_ops import SharedAlloc
from tilec.ir.ops.sync_ops import SharedFree
from tilec.ir.types import ScratchType
from tilec.passes.analysis.declared_ranges import required
from tilec.passes.analysis.divisibility import promised_symbols
from tilec.passes.analysis.ranges import expr_range
from tilec.passes.analysis.trips import repeats
from tilec.target.schedule import Schedule

MOST_BYTES: Final = 32 << 10
"""Shared memory of all parts of a kernel, so that several blocks still share a multiprocessor."""
LEAST_UPDATES: Final = 2
"""Updates for each element from which a part pays: fill, flush and two barriers cost about as much as half of the updates."""
LEAST_LOOPS: Final = 4
"""The same if updates are loops of compare-and-swap: threads that update one element at once repeat theirs."""


def applies(schedule: Schedule) -> bool:
    """Whether all threads of a block run the whole kernel once."""
    return len(schedule.roles) == 1 and not schedule.persistent and schedule.cluster == 1


@dataclass(eq=False, slots=True)
class _Use:
    """The updates of a tensor: the operations, how many elements a block updates at least, and the statements of the kernel
    that contain them, in order."""

    ops: list[AtomicScatter] = field(default_factory=list[AtomicScatter])
    updates: int = 0
    statements: list[Op] = field(default_factory=list[Op])


def insert(function: Function) -> Function:
    """Replace the updates of each such tensor, in place."""
    used = _uses(function)
    offset, left = None, MOST_BYTES
    for tensor, use in used.items():
        shape = _bounds(function, tensor)
        size = part_bytes(prod(shape), tensor.tensor.dtype) if shape else 0
        if shape is None or size > left or not _pays(use, prod(shape), tensor):
            continue
        if offset is None:
            offset = scratch_offset(max(taken_bytes(function).values(), default=0))
        _replace(function, tensor, use, shape, offset)
        offset, left = scratch_offset(offset + size), left - size
    return function


def _uses(function: Function) -> dict[Value, _Use]:
    """The tensors that a part may stand for."""
    found: dict[Value, _Use] = {}
    refused: set[Value] = set()

    repeated = repeats(function.body)
    for statement in function.body.ops:
        for op in Block(ops=[statement]).walk():
            if isinstance(op, AtomicScatter) and _may_be_private(op):
                use = found.setdefault(op.tensor, _Use())
                use.ops.append(op)
                use.updates += repeated[op] * op.tile.tile.size
                use.statements.append(statement)
            else:
                refused.update(tensor for tensor, _ in op.touched())
    return {tensor: use for tensor, use in found.items() if tensor not in refused and len({op.kind for op in use.ops}) == 1}


def _may_be_private(op: AtomicScatter) -> bool:
    return not op.results and op.unsafe is None and can_be_private(op.kind, op.tensor.tensor.dtype)


def _bounds(function: Function, tensor: Value) -> tuple[int, ...] | None:
    """An upper bound of each extent for every launch that satisfies the contract; None if one is larger than any part."""
    symbols = promised_symbols(function)
    for bound in required(function):
        known = symbols[bound.symbol]
        symbols[bound.symbol] = known._replace(high=min(known.high, max(known.low, bound.high)))
    shape = tuple(expr_range(dim, symbols).high for dim in tensor.tensor.dims)
    return shape if shape and prod(shape) <= MOST_BYTES and min(shape) >= 1 else None


def _pays(use: _Use, num_slots: int, tensor: Value) -> bool:
    dtype = tensor.tensor.dtype
    factor = LEAST_LOOPS if dtype.is_float or dtype.bits > 32 else LEAST_UPDATES
    return use.updates >= factor * num_slots


def _replace(function: Function, tensor: Value, use: _Use, shape: tuple[int, ...], offset: int) -> None:
    kind, loc = use.ops[0].kind, use.ops[0].loc
    alloc = SharedAlloc(offset=offset, loc=loc)
    alloc.define(ScratchType(part_bytes(prod(shape), tensor.tensor.dtype)))
    part = alloc.result
    before = [alloc, PrivateFill(operands=[part, tensor], kind=kind, shape=shape, loc=loc)]
    after = [PrivateFlush(operands=[tensor, part], kind=kind, shape=shape, loc=use.ops[-1].loc), SharedFree(operands=[part])]
    first, last = use.statements[0], use.statements[-1]
    updates: dict[Op, Op] = {
        op: PrivateUpdate(operands=[part, tensor, op.tile, *op.indices], kind=kind, shape=shape, mask=op.mask, loc=op.loc)
        for op in use.ops
    }
    ops: list[Op] = []
    for op in function.body.ops:
        ops += [*(before if op is first else ()), op, *(after if op is last else ())]
    function.body.ops = ops
    _substitute(function.body, updates)


def _substitute(block: Block, updates: dict[Op, Op]) -> None:
    block.ops = [updates.get(op, op) for op in block.ops]
    for op in block.ops:
        for region in op.regions:
            _substitute(region, updates)
