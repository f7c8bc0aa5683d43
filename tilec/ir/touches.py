"""What each operation touches in the memory that the threads of a block share, and with which threads.

In: a function with layouts, its changes of layout explicit (`tilec.passes.conversions`). Out: for every operation its touches
of global and shared memory, in the order in which they happen, and whether the threads of the block meet in between. An
element is touched by those threads that hold it under the layout; of several, only the first one stores it.

Left out: tensors that are only read (`In`), which no launch in flight writes, and an `Out` outside of `unsafe`, of which it is
proven that each element is written once and read never. Copies into a ring of stages and reads of the same ring are ordered by
the pipeline's own operations (`wait_copies`, `wait_mma`) and do not conflict here; with everything else they do.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilec.ir.core import Access, Effect, Function, Op, Value
from tilec.ir.exchange import exchange_bytes
from tilec.ir.layout import Layout
from tilec.ir.ops import AtomicUpdate, Gather, Load, Scatter, Store
from tilec.ir.ops_staging import AsyncCopy, BlockBarrier, GroupMma, SharedLoad, WaitCopies
from tilec.ir.shared_plan import scratch_offset, taken_bytes


@dataclass(frozen=True, slots=True)
class Touch:
    """`memory` is a tensor, a ring of stages, or None for scratch; shared memory takes the bytes `first` up to `last`.
    `place` are the offsets of a box, None where any element may be touched; `layout` says by which threads, None: by any."""

    op: Op
    kind: Effect
    memory: Value | None
    first: int = 0
    last: int = 0
    place: tuple[Value, ...] | None = None
    layout: Layout | None = None

    @property
    def is_shared(self) -> bool:
        """Whether this is shared memory."""
        return self.last > self.first


@dataclass(frozen=True, slots=True)
class Touches:
    """What an operation touches before its threads meet, whether they do, and what it touches then."""

    before: tuple[Touch, ...] = ()
    meets: bool = False
    after: tuple[Touch, ...] = ()


def may_conflict(earlier: Touch, later: Touch) -> bool:
    """Whether two touches may be of the same bytes and want an order: one is no read, and they are not both atomic."""
    if earlier.kind is later.kind and earlier.kind is not Effect.WRITE:
        return False
    if earlier.is_shared != later.is_shared:
        return False
    if not earlier.is_shared:
        return earlier.memory is later.memory
    if earlier.memory is not None and earlier.memory is later.memory:
        return False  # one ring of stages: the pipeline's own order
    return earlier.first < later.last and later.first < earlier.last


def touches(function: Function) -> dict[Op, Touches]:
    """The touches of every operation that has some or lets the threads meet."""
    taken = taken_bytes(function)
    ordered = {p.value for p in function.parameters if _needs_order(function, p.value, p.access)}
    found: dict[Op, Touches] = {}
    for op in function.body.walk():
        made = _of(op, ordered, taken, function.num_warps * 32)
        if made != Touches():
            found[op] = made
    return found


def _needs_order(function: Function, tensor: Value, access: Access | None) -> bool:
    if access is None or access is Access.IN:
        return False
    if access is not Access.OUT:
        return True
    return any(tensor in op.operands and op.attributes().get("unsafe") is not None for op in function.body.walk())


def _of(op: Op, ordered: set[Value], taken: dict[Op, int], threads: int) -> Touches:
    match op:
        case BlockBarrier() | WaitCopies():
            return Touches(meets=True)
        case Load() | Store() | AtomicUpdate():
            layout = op.result.layout if isinstance(op, Load) else op.tile.layout
            return _global(op, ordered, tuple(op.offsets), layout)
        case Gather() | Scatter():
            return _global(op, ordered, None, None)
        case AsyncCopy():
            copied = _ring(op, op.buffer, Effect.WRITE)
            return Touches(before=(*_global(op, ordered, None, None).before, copied))
        case SharedLoad():
            return Touches(before=(_ring(op, op.buffer, Effect.READ),))
        case GroupMma():
            return Touches(before=tuple(_ring(op, op.operands[place], Effect.READ) for place in (0, 2)))
        case _:
            size = exchange_bytes(op, threads)
            if not size:
                return Touches()
            first = scratch_offset(taken, op)
            written, read = (Touch(op, kind, None, first, first + size) for kind in (Effect.WRITE, Effect.READ))
            return Touches((written,), True, (read,))


def _global(op: Op, ordered: set[Value], place: tuple[Value, ...] | None, layout: Layout | None) -> Touches:
    tensor = op.operands[0]
    if tensor not in ordered:
        return Touches()
    kind = Effect.READ if isinstance(op, AsyncCopy) else op.effect
    return Touches(before=(Touch(op, kind, tensor, place=place, layout=layout),))


def _ring(op: Op, buffer: Value, kind: Effect) -> Touch:
    made = buffer.owner
    first = getattr(made, "offset", 0)
    return Touch(op, kind, buffer, first, first + buffer.shared.bytes)
