"""Checks pipelines: no stage of a ring is written while it is read, or read before its copy is there, and nobody waits for
ever.

In: a prepared function. Out: nothing, or a VerifyError that names the operation. The order that a pipeline needs beside the
meetings of threads (`meeting_check`) comes from the operations of its ring, and is followed by running them: every
pipelined loop for 0, 1, 2, as many turns as it has stages, and two rounds of the ring and one turn more. What a turn does
depends on its place in the ring and the groups under way alone, so later turns repeat those. Scalars that follow from the
loop's bounds are computed, all else is unknown.

- A stage is acquired once it was released, and of a ring of groups all threads have met since; a copy goes into the stage that
  was acquired last, to which no copy is on its way, which no product reads, and no thread has read since all last met.
- A read, by threads or by a product of warpgroups, is of a stage that was waited for and not released, and of the copy for this
  turn. Of a ring of groups, all threads have met since the wait. A product needs a fence of its proxy between wait and meeting
  (PTX ISA, "Async proxy").
- What is done with a ring of mbarriers names the stage and the parity of its turn; the bytes that are expected are those of the
  copies, and the mbarriers are used once all know of them. Where a buffer is freed, all copies into it have been waited for.
- Roles run side by side, each until a ring of mbarriers makes it wait. Rings are queues, so what each sees does not depend on
  who goes first; where all wait, none ever goes on.
- Scratch takes no bytes of a ring with copies or products under way; none are left where a ring is freed and at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field

from tilec.atoms import tma
from tilec.ir.core import Block, Function, Op, Value, VerifyError
from tilec.ir.ops import Constant, For, If
from tilec.ir.ops_staging import AsyncCopy, GroupMma, SharedAlloc, SharedLoad, StageCopy, WaitMma
from tilec.ir.ops_sync import Acquire, Barrier, Commit, Drain, ProxyFence, Release, Ring, RingOp, Roles, SharedFree, Wait
from tilec.ir.touches import Touches, touches
from tilec.ir.types import SharedType
from tilec.passes.schedule.ring_state import Queue, Role, Stage, There, left_over, number

OUTER_TURNS = 2  # of loops around pipelines: what one leaves behind meets the next
Steps = Generator[Op]
"""A run, which gives the operation at which it has to wait."""


def check(function: Function) -> None:
    """Raise VerifyError where a pipeline reads or writes a stage too early. Kernels without rings pass."""
    most = max((op.result.ring.stages for op in function.body.walk() if isinstance(op, Ring)), default=0)
    if not most:
        return
    found = touches(function)
    loops = [op for op in function.body.walk() if isinstance(op, For) and is_piped(op)]
    begins = [int(op.lower.owner.value) for op in loops if isinstance(op.lower.owner, Constant)]
    # Loops that end at the same value and begin apart do not have the same number of turns: one run is as much longer.
    for turns in sorted({0, 1, 2, most, 2 * most + 1, 2 * most + 1 + min(64, max(begins, default=0))}):
        run = _Run(turns, found)
        run.bound(loops)
        for op in run.block(function.body):
            raise VerifyError(f"{_at(op)} waits for ever")
        run.end(f"{function.name}: copies or products are under way at the end")


@dataclass(eq=False, slots=True)
class _Run:
    turns: int
    touches: dict[Op, Touches]
    env: dict[Value, int] = field(default_factory=dict[Value, int])
    there: dict[Stage, There] = field(default_factory=dict[Stage, There])
    started: dict[Value, int] = field(default_factory=dict[Value, int])  # copies into each buffer by this pipeline
    rings: dict[Value, Queue] = field(default_factory=dict[Value, Queue])
    read: set[Stage] = field(default_factory=set[Stage])  # since all threads met
    role: Role = field(default_factory=Role)
    beside: bool = False  # roles run beside this one
    freed: set[Value] = field(default_factory=set[Value])  # buffers
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

    def block(self, block: Block) -> Steps:
        for op in block.ops:
            if isinstance(op, For):
                yield from self.loop(op)
            elif isinstance(op, If):
                yield from self.branch(op)
            elif isinstance(op, Roles):
                self.roles(op)
            elif isinstance(op, Acquire | Wait):
                yield from self.acquire(op) if isinstance(op, Acquire) else self.wait(op)
            else:
                self.step(op)

    def step(self, op: Op) -> None:
        match op:
            case Ring():
                self.rings[op.result] = Queue(op, [self.role])
                self.role.waited[op.result] = self.role.released[op.result] = 0
            case SharedAlloc():
                self.started[op.result] = 0
                self.freed.discard(op.result)
            case StageCopy():
                self.copy(op)
            case Commit():
                self.commit(op)
            case Release():
                self.give_back(op)
            case Drain():
                self.drain(op)
            case Barrier():
                self.meet(op)
            case ProxyFence():
                for one in (*self.there.values(), *self.rings.values()):
                    one.fenced |= not one.met
            case SharedFree():
                self.free(op)
            case SharedLoad():
                if not self.of_buffer(op, op.buffer)[1].by_groups:  # one thread of a warp gives a stage back for all of it
                    raise VerifyError(f"{_at(op)}: products of warpgroups alone read a ring of mbarriers")
                self.read.add(self.arrived(op, op.buffer, op.stage, False))
            case GroupMma():
                pairs = ((op.operands[0], op.operands[1]), (op.operands[2], op.operands[3]))
                self.role.products.append({self.arrived(op, buffer, stage, True) for buffer, stage in pairs})
            case WaitMma():
                while len(self.role.products) > op.pending:
                    self.read |= self.role.products.pop(0)
            case _:
                self.other(op)

    def other(self, op: Op) -> None:
        """Scratch, and arithmetic on scalars."""
        busy = self.role.copies_under_way().union(*self.role.products)
        for touch in self.touches.get(op, Touches()).made:
            for buffer, _ in busy if touch.is_shared else ():
                first = getattr(buffer.owner, "offset", 0)
                if touch.first < first + buffer.shared.bytes and first < touch.last:
                    raise VerifyError(f"{_at(op)} takes bytes of a ring that is in use")
        if op.results and op.result not in self.fixed:
            value = number(op, self.env)
            if value is None:
                self.env.pop(op.result, None)
            else:
                self.env[op.result] = value

    def place(self, op: Op, buffer: Value, stage: Value) -> Stage:
        index = self.env.get(stage)
        if index is None or not 0 <= index < buffer.shared.stages:
            raise VerifyError(f"{_at(op)}: stage {index} of a ring of {buffer.shared.stages}")
        return buffer, index

    def queue(self, op: Op, ring: Value) -> Queue:
        if ring not in self.rings:
            raise VerifyError(f"{_at(op)}: its ring was freed")
        return self.rings[ring]

    def of_buffer(self, op: Op, buffer: Value) -> tuple[Value, Queue]:
        assert isinstance(buffer.owner, SharedAlloc)
        (ring,) = buffer.owner.operands
        return ring, self.queue(op, ring)

    def acquire(self, op: Acquire) -> Steps:
        ring = self.queue(op, op.ring)
        if ring.acquired != ring.committed:
            raise VerifyError(f"{_at(op)}: the stage before was not committed")
        depth = op.ring.ring.stages
        if ring.by_groups and ring.acquired - ring.free >= depth:  # a release counts once all have met
            raise VerifyError(f"{_at(op)} takes a stage that may still be read")
        self.expect(op, ring, ring.acquired)
        while not ring.by_groups and ring.acquired - min(one.released[op.ring] for one in ring.readers) >= depth:
            yield op
        if not ring.by_groups:  # its readers gave the stage back, which they do after they have read it
            index = ring.acquired % depth
            self.read -= {(buffer, at) for buffer, at in self.read if at == index and self.of_buffer(op, buffer)[0] is op.ring}
        ring.acquired += 1
        ring.brought, ring.expected = 0, op.expected

    def expect(self, op: RingOp, ring: Queue, turn: int) -> None:
        problem = None if ring.by_groups else ring.problem(op, turn, self.env)
        if problem is not None:
            raise VerifyError(f"{_at(op)} {problem}")

    def copy(self, op: StageCopy) -> None:
        stage = self.place(op, op.buffer, op.stage)
        if stage in self.role.copies_under_way() or stage in self.read or any(stage in one for one in self.role.products):
            raise VerifyError(f"{_at(op)} overwrites a stage that is in use")
        value, ring = self.of_buffer(op, op.buffer)
        if ring.acquired == ring.committed or stage[1] != (ring.acquired - 1) % value.ring.stages:
            raise VerifyError(f"{_at(op)} goes into a stage that was not acquired")
        if op.buffer in self.freed:
            raise VerifyError(f"{_at(op)}: the buffer was freed")
        if ring.by_groups != isinstance(op, AsyncCopy):
            raise VerifyError(f"{_at(op)}: its ring counts other copies")
        ring.brought += tma.copied_bytes(op.buffer.shared)
        self.there.pop(stage, None)
        self.role.group.append((stage, self.started[op.buffer]))
        self.started[op.buffer] += 1

    def commit(self, op: Commit) -> None:
        ring = self.queue(op, op.ring)
        if ring.acquired != ring.committed + 1:
            raise VerifyError(f"{_at(op)}: no stage was acquired")
        ring.committed += 1
        if ring.by_groups:
            self.role.groups.append((op.ring, self.role.group))
        else:
            if ring.brought != ring.expected:
                raise VerifyError(f"{_at(op)}: copies bring {ring.brought} bytes where {ring.expected} are expected")
            ring.arrivals.append(self.role.group)
        self.role.group = []

    def wait(self, op: Wait) -> Steps:
        ring = self.queue(op, op.ring)
        if ring.by_groups:
            self.finish(op.pending)
            if ring.full <= self.role.waited[op.ring]:
                raise VerifyError(f"{_at(op)}: the next stage may not be full yet")
        self.expect(op, ring, self.role.waited[op.ring])
        while not ring.by_groups and ring.committed <= self.role.waited[op.ring]:
            yield op
        if not ring.by_groups:
            arrived = ring.arrivals[self.role.waited[op.ring]]
            self.there |= {stage: There(turn, fenced=True, met=True) for stage, turn in arrived}
        self.role.waited[op.ring] += 1

    def finish(self, pending: int) -> None:
        """Groups of copies are there, all but the newest `pending`."""
        while len(self.role.groups) > pending:
            value, group = self.role.groups.pop(0)
            if value in self.rings:
                self.rings[value].full += 1
            self.there |= {stage: There(turn) for stage, turn in group}

    def give_back(self, op: Release) -> None:
        ring, count = self.queue(op, op.ring), self.role.waited[op.ring] - op.held
        if not ring.by_groups:
            self.expect(op, ring, self.role.released[op.ring])
            if count != self.role.released[op.ring] + 1:
                raise VerifyError(f"{_at(op)}: no stage, or several, could be given back")
        self.release(op, count)

    def release(self, op: Op, count: int) -> None:
        """The first `count` stages of the ring are not read any more."""
        value = op.operands[0]
        self.queue(op, value)
        depth = value.ring.stages
        for place in range(self.role.released[value], count):
            for buffer, index in set[Stage]().union(*self.role.products):
                if self.of_buffer(op, buffer)[0] is value and index == place % depth:
                    raise VerifyError(f"{_at(op)} gives back a stage that a product reads")
        self.role.released[value] = max(self.role.released[value], count)

    def drain(self, op: Drain) -> None:
        ring = self.queue(op, op.ring)
        if not ring.by_groups or ring.acquired != ring.committed:
            raise VerifyError(f"{_at(op)}: only groups that were committed can be waited for")
        self.finish(0)
        self.role.waited[op.ring] = ring.committed
        self.release(op, ring.committed)

    def meet(self, op: Barrier) -> None:
        if self.beside and op.scope != "role":
            raise VerifyError(f"{_at(op)}: threads of other roles never come")
        if self.beside:
            return
        self.read.clear()
        for value, ring in self.rings.items():
            ring.free = self.role.released[value]
        for one in (*self.there.values(), *self.rings.values()):
            one.met = True

    def free(self, op: SharedFree) -> None:
        busy = self.role.copies_under_way().union(*self.role.products)
        for value in op.operands:
            ring = self.rings.pop(value, None)
            if ring is not None and (ring.acquired != ring.committed or left_over(value, ring)):
                raise VerifyError(f"{_at(op)}: stages of the ring were filled, or may yet be, and nobody waited for them")
            if any(buffer is value for buffer, _ in busy):
                raise VerifyError(f"{_at(op)}: the buffer is in use")
            if isinstance(value.type, SharedType):
                self.free_buffer(op, value)

    def free_buffer(self, op: SharedFree, buffer: Value) -> None:
        """Roles beside this one copy into it no more, and all that they copied is there."""
        assert isinstance(buffer.owner, SharedAlloc)
        (value,) = buffer.owner.operands
        ring = self.rings.get(value)
        if ring is not None and not ring.by_groups and (ring.acquired != ring.committed or left_over(value, ring)):
            raise VerifyError(f"{_at(op)}: copies into the buffer are under way, or may yet come")
        self.freed.add(buffer)

    def end(self, message: str) -> None:
        left = any(left_over(value, ring) for value, ring in self.rings.items())
        if self.role.copies_under_way() or self.role.products or left:
            raise VerifyError(message)

    def arrived(self, op: Op, buffer: Value, stage: Value, product: bool) -> Stage:
        place = self.place(op, buffer, stage)
        value, _ = self.of_buffer(op, buffer)
        found = self.there.get(place)
        if found is None or found.turn != self.role.turn:
            raise VerifyError(f"{_at(op)} reads a stage before its copy is there")
        last = self.role.waited[value] - 1
        sequence = last - (last - place[1]) % value.ring.stages
        if sequence < self.role.released[value]:
            raise VerifyError(f"{_at(op)} reads a stage that was given back, or not waited for")
        if not found.met:
            raise VerifyError(f"{_at(op)} reads what other threads copied before all have met")
        if product and not found.fenced:
            raise VerifyError(f"{_at(op)} reads a stage that its proxy may not see yet")
        return place

    def roles(self, op: Roles) -> None:
        """Run the regions side by side: each until it has to wait for another."""
        outside, beside = self.role, self.beside
        if outside.copies_under_way() or outside.products:
            raise VerifyError(f"{_at(op)}: copies or products are under way")
        parts = [Role(turn=outside.turn) for _ in op.regions]
        for value, ring in self.rings.items():
            reading = [
                part
                for part, region in zip(parts, op.regions, strict=True)
                if any(isinstance(one, Wait) and one.ring is value for one in region.walk())
            ]
            ring.readers = reading or [outside]
            filling = [r for r in op.regions if any(isinstance(one, Acquire) and one.ring is value for one in r.walk())]
            if len(filling) > 1 or (len(op.regions) > 1 and (filling or reading) and ring.by_groups):
                raise VerifyError(f"{_at(op)}: a ring is filled by one role, and its mbarriers tell the others")
            for part in parts:
                part.waited[value], part.released[value] = outside.waited[value], outside.released[value]
        self.beside = len(parts) > 1
        going = {part: self.block(region) for part, region in zip(parts, op.regions, strict=True)}
        stuck: dict[Role, Op] = {}
        while going:
            before = self.progress(parts)
            for part, steps in list(going.items()):
                self.role = part
                at = next(steps, None)
                if at is None:
                    del going[part]
                    stuck.pop(part, None)
                    if part.copies_under_way() or part.products:
                        raise VerifyError(f"{_at(op)}: a role leaves copies or products under way")
                else:
                    stuck[part] = at
            if going and len(stuck) == len(going) and self.progress(parts) == before:
                raise VerifyError(f"{_at(op)}: no role goes on: {', '.join(_at(one) for one in stuck.values())} waits for ever")
        self.role, self.beside = outside, beside
        for value, ring in self.rings.items():
            for count in (outside.waited, outside.released):
                mine = [(part.waited if count is outside.waited else part.released)[value] for part in ring.readers]
                count[value] = min(mine)
            ring.free = outside.released[value]
            ring.readers = [outside]
        self.read.clear()

    def progress(self, parts: list[Role]) -> tuple[int, ...]:
        """Changes whenever a role goes on."""
        counts = [count for ring in self.rings.values() for count in (ring.acquired, ring.committed)]
        return (*counts, *(sum(part.waited.values()) + sum(part.released.values()) for part in parts))

    def loop(self, op: For) -> Steps:
        (body,) = op.regions
        piped, role = is_piped(op), self.role
        first, step = self.env.get(op.lower, 0), self.env.get(op.step, 1)
        held = [self.env.get(value) for value in op.initial]
        rings = any(isinstance(inner, Acquire | Wait) for inner in body.walk())
        count = self.turns_of(op) if piped else OUTER_TURNS if rings else 1
        outer = role.turn
        for turn in range(count):
            values = [first + step * turn if piped else None, *held]
            self.bind(body.arguments, values)
            role.turn = turn if piped else outer
            yield from self.block(body)
            held = [self.env.get(value) for value in body.ops[-1].operands]
        role.turn = outer
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

    def branch(self, op: If) -> Steps:
        known = self.env.get(op.operands[0])
        for position, region in enumerate(op.regions):
            if known is None or bool(known) == (position == 0):
                yield from self.block(region)
                self.bind(op.results, [self.env.get(value) for value in region.ops[-1].operands])
        if known is None:
            self.bind(op.results, [None] * len(op.results))
            if self.role.copies_under_way() or self.role.products:
                raise VerifyError(f"{_at(op)}: a pipeline goes on behind a branch")


def is_piped(op: For) -> bool:
    """Whether each turn of a loop takes the next stage of rings outside of it. One around pipelines has their rings in its body
    first."""
    first = next((inner for inner in op.regions[0].walk() if isinstance(inner, Ring | Acquire | Wait)), None)
    return isinstance(first, Acquire | Wait)


def _at(op: Op) -> str:
    return f"{op.opcode}{f' at {op.loc}' if op.loc else ''}"
