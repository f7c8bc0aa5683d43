"""Simulation state of `ring_check`: rings, roles and stages, and scalar arithmetic that wraps at its dtype's width."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tilec.ir.core import Op, Value
from tilec.ir.facts.meaning import INTEGER_KINDS, integer_binary, integer_cast
from tilec.ir.ops import Binary, Cast, Compare, Constant, Select
from tilec.ir.ops.sync_ops import Ring, RingOp

Stage = tuple[Value, int]
Copy = tuple[Stage, int]  # with its sequence number in the buffer

_COMPARE = {"lt": int.__lt__, "le": int.__le__, "gt": int.__gt__, "ge": int.__ge__, "eq": int.__eq__, "ne": int.__ne__}


@dataclass(eq=False, slots=True)
class Role:
    """Warps that run together: the block, one role, or one part of it. `iteration` is the iteration of the pipelined loop,
    `tile` that of the loop around it. For rings that consumers read round-robin, `taken` counts the role's `order_wait`, and
    `has_turn` has the rings between its `order_wait` and `order_arrive`."""

    iteration: int = 0
    tile: int | None = None
    part: int = 0  # the part of its role that these warps are (`signal_ops`)
    taken: Counter[Value] = field(default_factory=Counter[Value])
    has_turn: set[Value] = field(default_factory=set[Value])
    group: list[Copy] = field(default_factory=list[Copy])  # not yet committed
    groups: list[tuple[Value, list[Copy]]] = field(default_factory=list[tuple[Value, list[Copy]]])  # in flight, oldest first
    products: list[set[Stage]] = field(default_factory=list[set[Stage]])  # stages read by MMAs in flight, oldest first
    unmet: set[Stage] = field(default_factory=set[Stage])  # stages of mbarrier rings that threads read since their warp met
    waited: Counter[Value] = field(default_factory=Counter[Value])  # number of stages of each ring
    released: Counter[Value] = field(default_factory=Counter[Value])

    def copies_in_flight(self) -> set[Stage]:
        return {stage for copies in (*(copies for _, copies in self.groups), self.group) for stage, _ in copies}


@dataclass(eq=False, slots=True)
class Queue:
    """State of a ring: number of stages acquired, committed and full so far; `free`: those released before the last barrier of
    the block. If consumers read round-robin: `passed` counts `order_arrive`, `passed_position` the stages waited for up to the
    last one, and `consumer_roles` has the role that read each stage."""

    op: Ring
    readers: list[Role] = field(default_factory=list[Role])
    acquired: int = 0
    committed: int = 0
    full: int = 0
    free: int = 0
    fenced: bool = False  # the mbarriers are visible to the async proxy
    visible: bool = False  # the mbarriers are visible to all threads
    bytes_copied: list[int] = field(default_factory=list[int])  # bytes copied into each acquired stage
    expected: list[int] = field(default_factory=list[int])
    arrivals: list[list[Copy]] = field(default_factory=list[list[Copy]])  # copies of each committed stage, mbarrier rings only
    tiles: list[int | None] = field(default_factory=list[int | None])  # the tile that each of these stages was copied for
    computed: set[int] = field(default_factory=set[int])  # uses of accumulators that some product wrote
    summed: set[tuple[object, ...]] = field(default_factory=set[tuple[object, ...]])  # uses, each with the copies of a product
    multiplied: set[Copy] = field(default_factory=set[Copy])  # copies that a product of a thread has read
    loaded: set[tuple[Role, int]] = field(default_factory=set[tuple[Role, int]])  # uses of accumulators, by the role that did
    read_by_products: bool = False  # of a thread, which only its commits follow
    passed: int = 0
    passed_position: int = 0
    consumer_roles: list[Role] = field(default_factory=list[Role])

    @property
    def by_groups(self) -> bool:
        return self.op.sync == "groups"

    @property
    def filled_by_copies(self) -> bool:
        """Whether the stages acquired so far count bytes."""
        return all(self.expected)

    @property
    def round_robin(self) -> bool:
        return self.op.consumer_roles > 1

    def is_free(self, iteration: int) -> bool:
        """Whether the readers of use number `iteration` of an mbarrier ring's stages have released it."""
        ring = self.op.result
        if self.round_robin:
            return iteration < 0 or (
                iteration < len(self.consumer_roles) and self.consumer_roles[iteration].released[ring] > iteration
            )
        return min(one.released[ring] for one in self.readers) > iteration

    def problem(self, op: RingOp, count: int, env: dict[Value, int]) -> str | None:
        """Why `op` on an mbarrier ring does not name use number `count` of its stages; None if it does."""
        if not (self.fenced and self.visible):
            return "uses mbarriers that others do not know of yet"
        depth = self.op.result.ring.stages
        named = tuple(env.get(value) for value in op.operands[1:])
        wanted = (count % depth, count // depth % 2)[: len(named)]
        return None if named == wanted else f"names stage and parity {named} where {wanted} come next"


@dataclass(eq=False, slots=True)
class StageContents:
    """Contents of a stage: sequence number of its copy, whether it is visible to the async proxy, and to all threads."""

    iteration: int
    fenced: bool = False
    visible: bool = False


def has_unread_stage(value: Value, ring: Queue) -> bool:
    """Whether some committed stage was never waited for."""
    if ring.round_robin:
        return len(ring.consumer_roles) != ring.committed
    return any(role.waited[value] != ring.committed for role in ring.readers)


def evaluate(op: Op, env: dict[Value, int]) -> int | None:
    """Result of a scalar operation on known operands; None if it is unknown."""
    if isinstance(op, Constant):
        return int(op.value) if op.result.tile.rank == 0 and not isinstance(op.value, float) else None
    if not isinstance(op, Select | Cast | Compare | Binary):
        return None
    operands = [env.get(value) for value in op.operands]
    if isinstance(op, Select):
        return None if operands[0] is None else operands[1] if operands[0] else operands[2]
    known = [value for value in operands if value is not None]
    if len(known) != len(operands) or not operands:
        return None
    dtype = op.result.tile.dtype
    if isinstance(op, Compare):
        return int(_COMPARE[op.kind](*known))
    if dtype.is_float:
        return None
    if isinstance(op, Cast):
        return integer_cast(known[0], dtype)
    return integer_binary(op.kind, known[0], known[1], dtype) if op.kind in INTEGER_KINDS else None
