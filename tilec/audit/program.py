"""Structure of a kernel: enclosing loops and branches, carried values, and the values that decide about memory accesses.

Tile IR goes in; `Program` answers queries about its structure. A carried value is an induction variable if each iteration of
its loop adds the same loop-invariant amount. Other carried values are evaluated iteration by iteration if the trip count is a
small constant, and are otherwise known by their bounds only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilec.audit.contract import Contract
from tilec.audit.intervals import Bounds, bounds_of
from tilec.audit.running_sums import RunningSum, running_sum
from tilec.ir.core import Access, Block, Effect, Function, Op, Parameter, Value
from tilec.ir.ops import Binary, Broadcast, Compare, Constant, Decreases, For, If, Invariant, MemoryOp, Reshape, Take

UNROLLED = 8
"""Maximum trip count of a loop that is evaluated iteration by iteration."""


@dataclass(frozen=True, slots=True)
class Frame:
    """An enclosing loop or branch: `op` with the region (0 then, 1 else) that contains the operation."""

    op: For | If
    region: int


@dataclass(frozen=True, slots=True)
class Induction:
    """A carried value that grows by `amount` (subtracted if `sign` is -1) in every iteration; `amount` is None if it never
    changes."""

    amount: Value | None
    sign: int = 1


@dataclass(slots=True)
class Program:
    """A function with its structure. `deciding` are the operations that indices, loop ranges and branches are computed from;
    `unrolled` the loops that are evaluated iteration by iteration; `positive` the operations whose divisor or step is proven
    positive; `claims` the invariants that are known."""

    function: Function
    contract: Contract
    bounds: dict[Value, Bounds] = field(default_factory=dict[Value, Bounds])
    frames: dict[Op, tuple[Frame, ...]] = field(default_factory=dict[Op, "tuple[Frame, ...]"])
    order: dict[Op, int] = field(default_factory=dict[Op, int])
    loops: dict[Block, For] = field(default_factory=dict[Block, For])
    deciding: list[Op] = field(default_factory=list[Op])
    unrolled: set[For] = field(default_factory=set[For])
    positive: set[Op] = field(default_factory=set[Op])
    claims: tuple[Invariant, ...] = ()
    _comparisons: dict[object, Value] = field(default_factory=dict[object, Value])
    _sums: dict[Value, RunningSum | None] = field(default_factory=dict[Value, "RunningSum | None"])

    def __post_init__(self) -> None:
        self.bounds = bounds_of(self.function, self.contract)
        self._enclose(self.function.body, ())
        decisive = self._decisive_values()
        owners = {value.owner for value in decisive if isinstance(value.owner, Op)}
        self.deciding = [op for op in self.order if op in owners or isinstance(op, For)]
        for loop in self.loops.values():
            carried = [argument for argument in loop.regions[0].arguments[1:] if argument in decisive]
            if any(self.induction(argument) is None for argument in carried) and self.iterations(loop) is not None:
                self.unrolled.add(loop)

    def _enclose(self, block: Block, frames: tuple[Frame, ...]) -> None:
        for op in block.ops:
            self.order[op] = len(self.order)
            self.frames[op] = frames
            if isinstance(op, For):
                self.loops[op.regions[0]] = op
            if isinstance(op, For | If):
                for region_index, region in enumerate(op.regions):
                    self._enclose(region, (*frames, Frame(op, region_index)))

    def branches_before(self, other: Op, op: Op) -> tuple[Frame, ...] | None:
        """The branches in which `other` is executed before `op`, besides those around both; None if it comes later, or is in a
        loop that `op` is not in."""
        enclosing, frames = self.frames[other], self.frames[op]
        shared = 0
        while shared < min(len(enclosing), len(frames)) and enclosing[shared] == frames[shared]:
            shared += 1
        inner = enclosing[shared:]
        is_later = self.order[other] >= self.order[op]
        return None if is_later or any(isinstance(frame.op, For) for frame in inner) else inner

    def accesses(self) -> list[MemoryOp]:
        """Every memory access in program order."""
        return [op for op in self.order if isinstance(op, MemoryOp)]

    def first_alike(self, value: Value) -> Value:
        """The first value of the enclosing block that compares the same floats as this one does: the value itself for all
        but repeated comparisons."""
        op = value.owner
        if not isinstance(op, Compare) or not op.operands[0].tile.dtype.is_float:
            return value
        around = tuple((frame.op, frame.region) for frame in self.frames[op])
        return self._comparisons.setdefault((around, op.kind, *map(_content, op.operands)), value)

    def running_sum(self, value: Value) -> RunningSum | None:
        """The tile whose running sums a value has; None if it has none, or if a sum might wrap."""
        if value not in self._sums:
            found = running_sum(value, self.order)
            if found is not None:
                extent, (low, high) = found.tile.tile.shape[found.axis], self.bounds[found.tile]
                least, largest = value.tile.dtype.integer_range()
                found = found if least <= low * extent and high * extent <= largest else None
            self._sums[value] = found
        return self._sums[value]

    def loops_around(self, op: Op) -> list[For]:
        """Enclosing loops, outermost first."""
        return [frame.op for frame in self.frames[op] if isinstance(frame.op, For)]

    def loops_of(self, value: Value) -> list[For]:
        """Loops around the definition of a value, outermost first."""
        if isinstance(value.owner, Op):
            return self.loops_around(value.owner)
        loop = self.loops.get(value.owner) if value.owner is not None else None
        return [*self.loops_around(loop), loop] if loop is not None else []

    def parameter(self, op: MemoryOp) -> Parameter:
        """The tensor parameter that an operation accesses."""
        return self.function.parameter_of(op.tensor)

    def subject(self, op: MemoryOp) -> str:
        """The subject of an access as in the manifest, such as "store to `out`"."""
        return f"{op.verb} {'to' if writes(op) else 'from'} `{self.parameter(op).name}`"

    def written(self, name: str) -> bool:
        """Whether an access writes the tensor."""
        return any(writes(op) and self.parameter(op).name == name for op in self.accesses())

    def reads_initial_contents(self, name: str) -> bool:
        """Whether every read of the tensor returns its contents before the launch: nothing writes it, or it is an `InOut`
        tensor, whose elements each belong to one block, and all reads come before all writes."""
        own_accesses = [op for op in self.accesses() if self.parameter(op).name == name]
        first_write = next((position for position, op in enumerate(own_accesses) if writes(op)), None)
        if first_write is None:
            return True
        if self.function.parameter(name).access is not Access.INOUT or any(op.unsafe is not None for op in own_accesses):
            return False
        loops = {loop for op in own_accesses if writes(op) for loop in self.loops_around(op)}
        return not any(loop in loops for op in own_accesses if not writes(op) for loop in self.loops_around(op)) and all(
            writes(op) for op in own_accesses[first_write:]
        )

    def exclusive_sources(self, values: list[Value]) -> list[Op]:
        """Operations that these values are computed from and that decide nothing else, in program order."""
        owners = {value.owner for value in self._closure(values)} - set(self.deciding)
        return [op for op in self.order if op in owners]

    def iterations(self, loop: For) -> int | None:
        """The trip count of a loop, if it is a small constant."""
        ends = [self.bounds[value] for value in (loop.lower, loop.upper, loop.step)]
        if any(low != high for low, high in ends) or ends[2][0] < 1:
            return None
        count = len(range(ends[0][0], ends[1][0], ends[2][0]))
        return count if count <= UNROLLED else None

    def induction(self, argument: Value) -> Induction | None:
        """The change of a carried value per iteration, if it is the same in every iteration."""
        block = argument.owner
        assert isinstance(block, Block)
        following = block.ops[-1].operands[block.arguments.index(argument) - 1]
        if following is argument:
            return Induction(None)
        op = following.owner
        if not isinstance(op, Binary) or op.kind not in ("add", "sub") or argument.tile.dtype.is_float:
            return None
        left, right = op.operands
        if left is argument and self.loop_invariant(right, block):
            return Induction(right, 1 if op.kind == "add" else -1)
        if right is argument and op.kind == "add" and self.loop_invariant(left, block):
            return Induction(left)
        return None

    def loop_invariant(self, value: Value, block: Block) -> bool:
        """Whether a value does not depend on the iteration of the loop with this body."""
        owner = value.owner
        if isinstance(owner, Constant):
            return True
        if isinstance(owner, Broadcast | Reshape):
            return self.loop_invariant(owner.operands[0], block)
        if isinstance(owner, Op):
            loop = self.loops[block]
            return all(frame.op is not loop for frame in self.frames[owner])
        if owner is self.function.body:
            return True
        return owner is not None and owner is not block and not self._inside(owner, block)

    def _inside(self, inner: Block, outer: Block) -> bool:
        return any(inner is region for op in outer.walk() for region in op.regions)

    def _decisive_values(self) -> set[Value]:
        """All values that an index, a loop's range or a branch is computed from."""
        pending: list[Value] = []
        for op in self.order:
            if isinstance(op, MemoryOp):
                pending += op.indices if op.unsafe is None else []
            elif isinstance(op, Take):
                pending += op.operands[1:]
            elif isinstance(op, Invariant | Decreases):
                pending += op.operands
            elif isinstance(op, For):
                pending += op.operands[:3]
            elif isinstance(op, If):
                pending += op.operands[:1]
        return self._closure(pending)

    def _closure(self, values: list[Value]) -> set[Value]:
        """The transitive sources of these values, including themselves."""
        pending, seen = list(values), set[Value]()
        while pending:
            value = pending.pop()
            if value not in seen:
                seen.add(value)
                pending += self._sources(value)
        return seen

    def _sources(self, value: Value) -> list[Value]:
        owner = value.owner
        if isinstance(owner, For):
            index = owner.results.index(value)
            return [owner.initial[index], owner.regions[0].ops[-1].operands[index], owner.regions[0].arguments[index + 1]]
        if isinstance(owner, If):
            index = owner.results.index(value)
            return [owner.operands[0], *(region.ops[-1].operands[index] for region in owner.regions)]
        if isinstance(owner, MemoryOp):  # a loaded value, or the old one of an atomic
            return []
        if isinstance(owner, Op):
            return [operand for operand in owner.operands if not operand.tile.dtype.is_float]
        if owner in self.loops:
            index = owner.arguments.index(value)
            loop = self.loops[owner]
            return [loop.initial[index - 1], owner.ops[-1].operands[index - 1]] if index else list(loop.operands[:3])
        return []


def _content(value: Value) -> object:
    """What a tile holds: a repeated number, or a value."""
    while isinstance(value.owner, Broadcast | Reshape) and not value.owner.operands[0].tile.rank:
        value = value.owner.operands[0]
    return (value.owner.value, value.tile.dtype) if isinstance(value.owner, Constant) else value


def writes(op: MemoryOp) -> bool:
    """Whether an access modifies memory."""
    return op.effect in (Effect.WRITE, Effect.ATOMIC)


def exclusive(parameter: Parameter) -> bool:
    """Whether two blocks must not access one element of the tensor if one of them writes it."""
    return parameter.access not in (None, Access.IN)
