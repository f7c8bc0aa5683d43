"""Which global and shared memory each operation accesses, and from which threads of the block.

In: a function with layouts, whose layout conversions are explicit (`tilec.passes.schedule.layouts.shared_conversions`). Out:
for every operation its accesses of global and shared memory, and whether it is a barrier. An element is accessed by the threads
that have it under the layout. If several have it, only the first one stores it; a copy past the end of an axis
(`tilec.ir.layouts.layout`) is never stored.

Left out: tensors that are only read (`In`), which no launch in flight writes, and an `Out` outside of `unsafe`, whose
elements are proven to be written once and never read. Copies into a ring and reads of the same ring are ordered by the
ring's own operations (`tilec.ir.ops.sync_ops`) and do not conflict here; they may conflict with any other access.

A `print` counts as a write of `OUTPUT`, by any thread: barriers then keep the lines of one from mixing with those of the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tilec.ir.core import Access, Effect, Function, Op, Value
from tilec.ir.layouts.layout import Layout
from tilec.ir.layouts.shared_plan import interval
from tilec.ir.ops import BOX_KINDS, AtomicScatter, AtomicUpdate, MemoryOp, Print
from tilec.ir.ops.private_ops import PrivateUpdate
from tilec.ir.ops.staging_ops import SharedAlloc
from tilec.ir.types import SharedType, TensorType, TileType, i32

OUTPUT: Final = Value(TileType(i32), "output")
"""Stands for standard output."""


@dataclass(frozen=True, slots=True)
class Touch:
    """One access. `memory` is a tensor, a ring's buffer, or None for scratch; in shared memory it covers the bytes `first` up
    to `last`. `offsets` are those of a box of `shape`; None: any element. `layout` says by which threads;
    None: by any thread."""

    op: Op
    kind: Effect
    memory: Value | None
    first: int = 0
    last: int = 0
    offsets: tuple[Value, ...] | None = None
    layout: Layout | None = None
    shape: tuple[int, ...] = ()

    @property
    def is_shared(self) -> bool:
        """Whether this is shared memory."""
        return self.last > self.first


@dataclass(frozen=True, slots=True)
class Touches:
    """The accesses of an operation, and whether it is a barrier; a barrier has no accesses."""

    made: tuple[Touch, ...] = ()
    is_barrier: bool = False


def may_conflict(earlier: Touch, later: Touch) -> bool:
    """Whether two accesses need an order: they may overlap, one of them is not a read, and they are not atomics of which the
    order does not matter: of one kind, with no old value that is used."""
    if earlier.kind is later.kind is Effect.READ or (earlier.kind is later.kind is Effect.ATOMIC and _commute(earlier, later)):
        return False
    if earlier.is_shared != later.is_shared:
        return False
    if not earlier.is_shared:
        return earlier.memory is later.memory
    if earlier.memory is not None and earlier.memory is later.memory:
        return False  # ordered by the ring's own operations
    return earlier.first < later.last and later.first < earlier.last


def _commute(earlier: Touch, later: Touch) -> bool:
    kinds = {
        op.kind if isinstance(op := touch.op, AtomicScatter | AtomicUpdate | PrivateUpdate) else ""
        for touch in (earlier, later)
    }
    return len(kinds) == 1 and kinds <= {*BOX_KINDS} and not (earlier.op.results or later.op.results)


def touches(function: Function) -> dict[Op, Touches]:
    """Accesses of every operation that has some or is a barrier."""
    ordered = {p.value for p in function.parameters if _needs_order(function, p.value, p.access)}
    found: dict[Op, Touches] = {}
    for op in function.body.walk():
        accesses = _touches_of(op, ordered)
        if accesses != Touches():
            found[op] = accesses
    return found


def _needs_order(function: Function, tensor: Value, access: Access | None) -> bool:
    if access is None or access is Access.IN:
        return False
    if access is not Access.OUT:
        return True
    return any(tensor in op.operands and op.attributes().get("unsafe") is not None for op in function.body.walk())


def _touches_of(op: Op, ordered: set[Value]) -> Touches:
    if op.is_barrier:
        return Touches(is_barrier=True)
    if isinstance(op, Print):
        return Touches((Touch(op, Effect.WRITE, OUTPUT),))
    found = [
        _touch(op, memory, kind)
        for memory, kind in op.touched()
        if not isinstance(memory.type, TensorType) or memory in ordered
    ]
    return Touches(tuple(found))


def _touch(op: Op, memory: Value, kind: Effect) -> Touch:
    if not isinstance(memory.type, TensorType):
        allocation = memory.owner
        assert isinstance(allocation, SharedAlloc)
        return Touch(op, kind, memory if isinstance(memory.type, SharedType) else None, *interval(allocation))
    if not isinstance(op, MemoryOp) or op.indexed:
        return Touch(op, kind, memory)
    return Touch(op, kind, memory, offsets=tuple(op.indices), layout=op.tile.layout, shape=op.tile.tile.shape)
