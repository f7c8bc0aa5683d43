"""What `ring_check` keeps of rings and of those who fill and read them, and arithmetic on the scalars that it follows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tilec.ir.core import Op, Value
from tilec.ir.ops import Binary, Cast, Compare, Constant, Select
from tilec.ir.ops_sync import Ring, RingOp

Stage = tuple[Value, int]
Copy = tuple[Stage, int]  # and the turn that it is for

_BINARY = {"add": int.__add__, "sub": int.__sub__, "mul": int.__mul__}
_COMPARE = {"lt": int.__lt__, "le": int.__le__, "gt": int.__gt__, "ge": int.__ge__, "eq": int.__eq__, "ne": int.__ne__}


@dataclass(eq=False, slots=True)
class Role:
    """Warps that run together: the block, or a part of it."""

    turn: int = 0
    group: list[Copy] = field(default_factory=list[Copy])  # not yet committed
    groups: list[tuple[Value, list[Copy]]] = field(default_factory=list[tuple[Value, list[Copy]]])  # under way, oldest first
    products: list[set[Stage]] = field(default_factory=list[set[Stage]])  # under way, oldest first
    waited: Counter[Value] = field(default_factory=Counter[Value])  # stages of each ring
    released: Counter[Value] = field(default_factory=Counter[Value])

    def copies_under_way(self) -> set[Stage]:
        return {stage for group in (*(group for _, group in self.groups), self.group) for stage, _ in group}


@dataclass(eq=False, slots=True)
class Queue:
    """State of a ring: stages acquired, committed and full so far; `free`: those whose release all threads know of."""

    op: Ring
    readers: list[Role] = field(default_factory=list[Role])
    acquired: int = 0
    committed: int = 0
    full: int = 0
    free: int = 0
    fenced: bool = False  # of a ring of mbarriers: copies know of them, and
    met: bool = False  # so do all threads
    brought: int = 0  # bytes of copies into the stage that was acquired, of
    expected: int = 0
    arrivals: list[list[Copy]] = field(default_factory=list[list[Copy]])  # of a ring of mbarriers, by stage

    @property
    def by_groups(self) -> bool:
        return self.op.sync == "groups"

    def problem(self, op: RingOp, count: int, env: dict[Value, int]) -> str | None:
        """Why `op` on a ring of mbarriers does not mean turn `count`; None where it does."""
        if not (self.fenced and self.met):
            return "uses mbarriers that others do not know of yet"
        depth = self.op.result.ring.stages
        named = tuple(env.get(value) for value in op.operands[1:])
        wanted = (count % depth, count // depth % 2)[: len(named)]
        return None if named == wanted else f"names stage and parity {named} where {wanted} come next"


@dataclass(eq=False, slots=True)
class There:
    """What lies in a stage: the turn that it is for; whether a fence let products see it, and whether all threads have met."""

    turn: int
    fenced: bool = False
    met: bool = False


def left_over(value: Value, ring: Queue) -> bool:
    """Whether a stage was committed and nobody has waited for it."""
    return any(one.waited[value] != ring.committed for one in ring.readers)


def number(op: Op, env: dict[Value, int]) -> int | None:
    """The value of arithmetic on scalars that are known; None where it is not."""
    if isinstance(op, Constant):
        return int(op.value) if op.result.tile.rank == 0 and not isinstance(op.value, float) else None
    of = [env.get(value) for value in op.operands]
    if isinstance(op, Select) and of[0] is not None:
        return of[1] if of[0] else of[2]
    known = [value for value in of if value is not None]
    if len(known) != len(of) or not of:
        return None
    if isinstance(op, Cast):
        return known[0]
    if isinstance(op, Compare):
        return int(_COMPARE[op.kind](*known))
    return _BINARY[op.kind](*known) if isinstance(op, Binary) and op.kind in _BINARY else None
