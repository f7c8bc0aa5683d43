"""Checks pipelines: no stage of a ring is written while it is read, or read before its copy is there.

In: a prepared function. Out: nothing, or a VerifyError that names the operation. The order that a pipeline needs beside the
meetings of threads (`tilec.passes.meeting_check`) comes from its own operations, and is followed by running them: every
pipelined loop for 0, 1, 2, as many turns as it has stages, and two rounds of the ring and one turn more. What a turn does
depends on its place in the ring and the groups under way alone, so later turns repeat those. Scalars that follow from the
loop's bounds are computed, all else is unknown.

- A copy goes into a stage that no copy is on its way to, no product reads, and no thread has read since all last met.
- A read, by threads or by a product of warpgroups, is of a stage whose copy was waited for, and of the copy for this turn.
  A product needs a wait that lets its proxy see the data (PTX ISA, "Async proxy").
- Scratch takes no bytes of a ring with copies or products under way; none are left at the end.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tilec.ir.core import Block, Function, Op, Value, VerifyError
from tilec.ir.ops import Binary, Cast, Compare, Constant, For, If, Select
from tilec.ir.ops_staging import AsyncCopy, CommitCopies, GroupMma, SharedAlloc, SharedLoad, WaitCopies, WaitMma
from tilec.ir.touches import Touches, touches

OUTER_TURNS = 2  # of loops around pipelines: what one leaves behind meets the next
Stage = tuple[Value, int]
Copy = tuple[Stage, int]  # and the turn that it is for

_BINARY = {"add": int.__add__, "sub": int.__sub__, "mul": int.__mul__}
_COMPARE = {"lt": int.__lt__, "le": int.__le__, "gt": int.__gt__, "ge": int.__ge__, "eq": int.__eq__, "ne": int.__ne__}


def check(function: Function) -> None:
    """Raise VerifyError where a pipeline reads or writes a stage too early. Kernels without rings pass."""
    most = max((op.result.shared.stages for op in function.body.walk() if isinstance(op, SharedAlloc)), default=0)
    if not most:
        return
    found = touches(function)
    loops = [op for op in function.body.walk() if isinstance(op, For) and is_piped(op)]
    begins = [int(op.lower.owner.value) for op in loops if isinstance(op.lower.owner, Constant)]
    # Loops that end at the same value and begin apart do not have the same number of turns: one run is as much longer.
    for turns in sorted({0, 1, 2, most, 2 * most + 1, 2 * most + 1 + min(64, max(begins, default=0))}):
        run = _Run(turns, found)
        run.bound(loops)
        run.block(function.body)
        if run.copies_under_way() or run.products:
            raise VerifyError(f"{function.name}: copies or products are under way at the end")


@dataclass(eq=False, slots=True)
class _Run:
    turns: int
    touches: dict[Op, Touches]
    env: dict[Value, int] = field(default_factory=dict[Value, int])
    group: list[Copy] = field(default_factory=list[Copy])  # not yet committed
    groups: list[list[Copy]] = field(default_factory=list[list[Copy]])  # under way, oldest first
    there: dict[Stage, tuple[int, bool]] = field(default_factory=dict[Stage, tuple[int, bool]])  # turn; seen by products
    started: dict[Value, int] = field(default_factory=dict[Value, int])  # copies into each ring by this pipeline
    products: list[set[Stage]] = field(default_factory=list[set[Stage]])  # under way, oldest first
    read: set[Stage] = field(default_factory=set[Stage])  # since all threads met
    turn: int = 0
    fixed: set[Value] = field(default_factory=set[Value])  # bounds that the number of turns decides

    def bound(self, loops: list[For]) -> None:
        """Choose the bounds of all pipelined loops so that each takes `turns`. A constant keeps its value where a loop begins,
        in steps, and where it bounds several loops or one loop twice, such as `range(1)`: the turns then follow from it."""
        ends = {op.upper for op in loops}
        uses = Counter(value for op in loops for value in (op.lower, op.step, op.upper))
        for op in loops:
            for value in (op.lower, op.step):
                otherwise = self.turns if value in ends else 0
                self.choose(value, otherwise if value is op.lower else max(otherwise, 1), keep=True)
        for op in loops:
            self.choose(op.upper, self.env[op.lower] + self.env[op.step] * self.turns, keep=uses[op.upper] > 1)

    def choose(self, value: Value, otherwise: int, *, keep: bool) -> None:
        if value not in self.fixed:
            self.env[value] = int(value.owner.value) if keep and isinstance(value.owner, Constant) else otherwise
            self.fixed.add(value)

    def copies_under_way(self) -> set[Stage]:
        return {stage for group in (*self.groups, self.group) for stage, _ in group}

    def block(self, block: Block) -> None:
        for op in block.ops:
            if isinstance(op, For):
                self.loop(op)
            elif isinstance(op, If):
                self.branch(op)
            else:
                self.step(op)

    def step(self, op: Op) -> None:
        match op:
            case SharedAlloc():
                self.started[op.result] = 0
            case AsyncCopy():
                self.copy(op)
            case CommitCopies():
                self.groups.append(self.group)
                self.group = []
            case WaitCopies():
                self.wait(op)
            case SharedLoad():
                self.read.add(self.arrived(op, op.buffer, op.stage, False))
            case GroupMma():
                pairs = ((op.operands[0], op.operands[1]), (op.operands[2], op.operands[3]))
                self.products.append({self.arrived(op, buffer, stage, True) for buffer, stage in pairs})
            case WaitMma():
                while len(self.products) > op.pending:
                    self.read |= self.products.pop(0)
            case _:
                self.other(op)

    def other(self, op: Op) -> None:
        """Scratch, meetings and arithmetic on scalars."""
        made = self.touches.get(op, Touches())
        busy = self.copies_under_way().union(*self.products)
        for touch in (*made.before, *made.after):
            for buffer, _ in busy if touch.is_shared else ():
                first = getattr(buffer.owner, "offset", 0)
                if touch.first < first + buffer.shared.bytes and first < touch.last:
                    raise VerifyError(f"{_at(op)} takes bytes of a ring that is in use")
        if made.meets:
            self.read.clear()
        if op.results and op.result not in self.fixed:
            value = self.number(op)
            if value is None:
                self.env.pop(op.result, None)
            else:
                self.env[op.result] = value

    def number(self, op: Op) -> int | None:
        if isinstance(op, Constant):
            return int(op.value) if op.result.tile.rank == 0 and not isinstance(op.value, float) else None
        of = [self.env.get(value) for value in op.operands]
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

    def place(self, op: Op, buffer: Value, stage: Value) -> Stage:
        index = self.env.get(stage)
        if index is None or not 0 <= index < buffer.shared.stages:
            raise VerifyError(f"{_at(op)}: stage {index} of a ring of {buffer.shared.stages}")
        return buffer, index

    def copy(self, op: AsyncCopy) -> None:
        stage = self.place(op, op.buffer, op.stage)
        if stage in self.copies_under_way() or stage in self.read or any(stage in product for product in self.products):
            raise VerifyError(f"{_at(op)} overwrites a stage that is in use")
        self.there.pop(stage, None)
        self.group.append((stage, self.started[op.buffer]))
        self.started[op.buffer] += 1

    def wait(self, op: WaitCopies) -> None:
        while len(self.groups) > op.pending:
            self.there |= {stage: (turn, False) for stage, turn in self.groups.pop(0)}
        if op.matrices:
            self.there = {stage: (turn, True) for stage, (turn, _) in self.there.items()}
        self.read.clear()

    def arrived(self, op: Op, buffer: Value, stage: Value, product: bool) -> Stage:
        place = self.place(op, buffer, stage)
        turn, seen = self.there.get(place, (-1, False))
        if turn != self.turn:
            raise VerifyError(f"{_at(op)} reads a stage before its copy is there")
        if product and not seen:
            raise VerifyError(f"{_at(op)} reads a stage that its proxy may not see yet")
        return place

    def loop(self, op: For) -> None:
        (body,) = op.regions
        piped = is_piped(op)
        first, step = self.env.get(op.lower, 0), self.env.get(op.step, 1)
        held = [self.env.get(value) for value in op.initial]
        count = self.turns_of(op) if piped else OUTER_TURNS if any(isinstance(i, WaitCopies) for i in body.walk()) else 1
        outer = self.turn
        for turn in range(count):
            values = [first + step * turn if piped else None, *held]
            self.bind(body.arguments, values)
            self.turn = turn if piped else outer
            self.block(body)
            held = [self.env.get(value) for value in body.ops[-1].operands]
        self.turn = outer
        self.bind(op.results, held)

    def turns_of(self, op: For) -> int:
        return max(0, -((self.env[op.lower] - self.env[op.upper]) // self.env[op.step]))

    def bind(self, names: list[Value], values: list[int | None]) -> None:
        for name, value in zip(names, values, strict=True):
            if name in self.fixed:
                continue  # a bound of a pipelined loop inside, which was chosen for all turns
            if value is None:
                self.env.pop(name, None)
            else:
                self.env[name] = value

    def branch(self, op: If) -> None:
        known = self.env.get(op.operands[0])
        for position, region in enumerate(op.regions):
            if known is None or bool(known) == (position == 0):
                self.block(region)
                self.bind(op.results, [self.env.get(value) for value in region.ops[-1].operands])
        if known is None:
            self.bind(op.results, [None] * len(op.results))
            if self.copies_under_way() or self.products:
                raise VerifyError(f"{_at(op)}: a pipeline goes on behind a branch")


def is_piped(op: For) -> bool:
    """Whether each turn of a loop begins by waiting for its copies. One around pipelines has their rings in its body first."""
    first = next((inner for inner in op.regions[0].ops if isinstance(inner, SharedAlloc | WaitCopies)), None)
    return isinstance(first, WaitCopies)


def _at(op: Op) -> str:
    return f"{op.opcode}{f' at {op.loc}' if op.loc else ''}"
