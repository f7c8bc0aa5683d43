"""Checks pipelines: no stage of a ring is written while it is read, or read before its copy is there, and nobody waits for
ever.

In: a prepared function. Out: nothing, or a VerifyError that names the operation. The order that a pipeline needs beside the
meetings of threads (`meeting_check`) comes from the operations of its ring, and is followed by running them: every
pipelined loop for 0, 1, 2, as many turns as it has stages, and two rounds of the ring and one turn more; for all numbers up to
one more than it has stages where first turns are written out. What a turn does depends on its place in the ring and the groups
under way alone, so later turns repeat those. Scalars that follow from the loop's bounds are computed, all else is unknown.

- A stage is acquired once it was released, and of a ring of groups all threads have met since; a copy goes into a stage that
  was acquired and not committed, of groups into the one acquired last, where none of its buffer is on its way, which no product
  reads, and no thread has read since all last met.
- A read, by threads or by a product of warpgroups, is of a stage that was waited for and not released, and of the copy for this
  turn. Of a ring of groups, all threads have met since the wait. A product needs a fence of its proxy between wait and meeting
  (PTX ISA, "Async proxy").
- What is done with a ring of mbarriers names the stage and the parity of its turn; the bytes that are expected are those of the
  copies, and the mbarriers are used once all know of them. Where a buffer is freed, all copies into it have been waited for.
- Where roles read a ring in turns, each waits for stages in its turn alone, which the role before it has passed on; and what
  it waits for was copied for the tile that it is at.
- Roles run side by side, each until a ring of mbarriers makes it wait. Rings are queues, so what each sees does not depend on
  who goes first; where all wait, none ever goes on.
- Scratch takes no bytes of a ring with copies or products under way; none are left where a ring is freed and at the end.

Numbers are those of the machine: arithmetic wraps at its dtype's width (`ring_state.number`), and where a loop's beginning or
step is no constant, runs are made at the end of i32 too, or of their ranges: with the longest step and the latest beginning for
which the loop's own obligation, that its variable fits up to one step behind its last iteration, still holds. Runs for which it
does not are left out. How often a loop goes round is counted without end; that the numbers of more turns fit, `width_check`
sees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import gcd
from typing import Final

from tilec.ir.core import Block, Function, Op, Value, VerifyError
from tilec.ir.ops import Binary, Compare, Constant, For, If, Select
from tilec.ir.ops_staging import GroupProduct, StageCopy, WaitMma
from tilec.ir.ops_sync import Acquire, Ring, RingOp, Roles, TakeTurn, Wait
from tilec.ir.touches import touches
from tilec.ir.types import i32
from tilec.passes.analysis.ranges import Range, value_ranges
from tilec.passes.schedule.meanings import Meanings
from tilec.passes.schedule.ring_state import Role
from tilec.passes.schedule.ring_steps import Operations, Steps, at

_STEERING: Final = (For, If, Roles, Acquire, Wait, TakeTurn)
OUTER_TURNS = 2  # of loops around pipelines: what one leaves behind meets the next
LAST: Final = i32.integer_range()[1]
FAR: Final = ("steps", "beginning")
"""What lies at the end of i32 in a run."""


def check(function: Function) -> None:
    """Raise VerifyError where a pipeline reads or writes a stage too early. Kernels without rings pass."""
    most = max((op.result.ring.stages for op in function.body.walk() if isinstance(op, Ring)), default=0)
    if not most:
        return
    found = touches(function)
    loops = [op for op in function.body.walk() if isinstance(op, For) and is_piped(op)]
    begins = [first for op in loops if (first := _constant(op.lower)) is not None]
    # Loops that end at the same value and begin apart do not have the same number of turns: one run is as much longer.
    numbers = {0, 1, 2, most, 2 * most + 1, 2 * most + 1 + min(64, max(begins, default=0))}
    if _is_peeled(function):  # under a condition each
        numbers |= set(range(most + 2))
    runs = [(turns, 0, "") for turns in sorted(numbers)]
    ranges: dict[Value, Range] = {}
    if not all(isinstance(value.owner, Constant) for op in loops for value in (op.lower, op.step)):
        ranges = value_ranges(function)
        runs += [(turns, 0, far) for turns in (0, 1, 2, most) for far in FAR]
    takers = max((op.takers for op in function.body.walk() if isinstance(op, Ring)), default=1)
    alternates: tuple[int | None, ...] = (0, 1, most + 1) if any(_of_tile(function)) else (None,)
    each = [
        (turns, tiles, far, alternate)
        for turns, tiles, far in (runs if takers == 1 else _in_turns(most, takers))
        for alternate in ((None,) if far else alternates)
    ]
    for turns, tiles, far, alternate in each:
        run = _Run(found, turns=turns, far=far, ranges=ranges, alternate=alternate)
        if not run.bound(loops):
            continue
        if takers > 1:
            run.count(function, tiles)
        for op in run.block(function.body):
            raise VerifyError(f"{at(op)} waits for ever")
        run.end(f"{function.name}: copies or products are under way at the end")


def _is_peeled(function: Function) -> bool:
    """Whether first turns of a loop that fills a ring of mbarriers are written out."""
    branches = [op for op in function.body.walk() if isinstance(op, If)]
    inside = (one for op in branches for region in op.regions for one in region.ops)
    return any(isinstance(one, Acquire) and len(one.operands) > 1 for one in inside)


def _in_turns(stages: int, takers: int) -> list[tuple[int, int, str]]:
    """Turns of pipelined loops, and tiles, of rings whose roles take the tiles in turns. Where a tile begins in the ring
    follows from its number and the turns of all: those of two rounds, each with so many tiles that the places come again."""
    places = 2 * stages
    few = [(turns, tiles, "") for turns in (1, stages) for tiles in range(takers + 2)]
    return [*few, *((turns, places // gcd(turns, places) + takers, "") for turns in (*range(places + 1), places + 1))]


@dataclass(eq=False, slots=True)
class _Run(Operations):
    turns: int = 0
    far: str = ""  # one of `FAR`, or nothing is
    ranges: dict[Value, Range] = field(default_factory=dict[Value, Range])  # where something may be far
    alternate: int | None = None  # turns of every second tile, of loops whose bounds follow the tile; None: as many
    counted: set[For] = field(default_factory=set[For])  # loops around pipelines whose turns are told apart

    def count(self, function: Function, tiles: int) -> None:
        """Choose the end of all loops around the pipelines."""
        for op in function.body.walk():
            rings = any(isinstance(inner, Acquire | Wait) for region in op.regions for inner in region.walk())
            if isinstance(op, For) and rings and not is_piped(op):
                self.counted.add(op)
                self.choose(op.upper, tiles, keep=False)

    def bound(self, loops: list[For]) -> bool:
        """Choose the bounds of all pipelined loops so that each takes `turns`. A constant keeps its value where a loop begins,
        in steps, and where it bounds several loops or one loop twice, such as `range(1)`: the turns then follow from it. So do
        those of a loop that begins whole steps behind another. False where a variable would leave i32, of which its loop has an
        obligation that it does not."""
        ends = {op.upper for op in loops}
        uses = Counter(value for op in loops for value in (op.lower, op.step, op.upper))
        steps = {(op.lower, op.step) for op in loops}
        roots = [one for one in loops if root(one, steps) is one.lower]
        for op in roots:
            first, step = (self.turns if value in ends else 0 for value in (op.lower, op.step))
            if self.far == "steps" and op.step not in ends:
                step = min((LAST - (_constant(op.lower) or 0)) // max(self.turns, 1), self.ranges[op.step].high)
            self.choose(op.step, max(step, 1), keep=True)
            if self.far == "beginning" and op.lower not in ends:
                first = min(LAST - self.turns * self.env[op.step], self.ranges[op.lower].high)
            self.choose(op.lower, first, keep=True)
        for op in roots:
            self.choose(op.upper, self.env[op.lower] + self.env[op.step] * self.turns, keep=uses[op.upper] > 1)
        return all(self.env[op.lower] + self.env[op.step] * self.turns_of(op) <= LAST for op in roots)

    def bound_of_tile(self, tiles: For, turns: int) -> None:
        """Choose the bounds that a tile itself decides, so that its pipelined loops take so many turns. What is computed inside
        is a role's own, which may be at another tile than the others."""
        for loop, inside in _loops_of_tile(tiles):
            if loop.upper in inside:
                self.env[loop.upper] = self.env[loop.lower] + self.env[loop.step] * turns
            elif loop.lower in inside and loop.lower in self.fixed:
                self.env[loop.lower] = self.env[loop.upper] - self.env[loop.step] * turns
            elif loop.step in inside:  # a loop that turns at all does so once at least, however large its steps
                self.env[loop.step] = max(1, -((self.env[loop.lower] - self.env[loop.upper]) // max(1, turns)))

    def choose(self, value: Value, otherwise: int, *, keep: bool) -> None:
        if value not in self.fixed:
            known = _constant(value) if keep else None
            self.env[value] = otherwise if known is None else known
            self.fixed.add(value)

    def block(self, block: Block) -> Steps:
        for op in block.ops:
            if not isinstance(op, _STEERING):
                self.step(op)
            elif isinstance(op, For):
                yield from self.loop(op)
            elif isinstance(op, If):
                yield from self.branch(op)
            elif isinstance(op, Roles):
                self.roles(op)
            elif isinstance(op, Acquire):
                yield from self.acquire(op)
            else:
                yield from self.wait(op) if isinstance(op, Wait) else self.take_turn(op)

    def roles(self, op: Roles) -> None:
        """Run the regions side by side: each until it has to wait for another."""
        outside, beside = self.role, self.beside
        if outside.copies_under_way() or outside.products:
            raise VerifyError(f"{at(op)}: copies or products are under way")
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
                raise VerifyError(f"{at(op)}: a ring is filled by one role, and its mbarriers tell the others")
            for part in parts:
                part.waited[value], part.released[value] = outside.waited[value], outside.released[value]
            self.same_turns(op, value)
        self.beside = len(parts) > 1
        going = {part: self.block(region) for part, region in zip(parts, op.regions, strict=True)}
        stuck: dict[Role, Op] = {}
        while going:
            before = self.progress(parts)
            for part, steps in list(going.items()):
                self.role = part
                stopped = next(steps, None)
                if stopped is None:
                    del going[part]
                    stuck.pop(part, None)
                    if part.copies_under_way() or part.products:
                        raise VerifyError(f"{at(op)}: a role leaves copies or products under way")
                else:
                    stuck[part] = stopped
            if going and len(stuck) == len(going) and self.progress(parts) == before:
                raise VerifyError(f"{at(op)}: no role goes on: {', '.join(at(one) for one in stuck.values())} waits for ever")
        self.role, self.beside = outside, beside
        for value, ring in self.rings.items():
            for count in (outside.waited, outside.released):
                mine = [(part.waited if count is outside.waited else part.released)[value] for part in ring.readers]
                count[value] = max(mine) if ring.in_turns else min(mine)
            ring.free = outside.released[value]
            ring.readers = [outside]
        self.read.clear()

    def same_turns(self, op: Roles, ring: Value) -> None:
        """How often loops turn is chosen, not known: those of two roles on one ring must have the same bounds, in turn. Where
        bounds follow the tile each role computes them, of its own tile: the same then."""
        same = Meanings(op)
        steps = {(one.lower, one.step) for region in op.regions for one in region.walk() if isinstance(one, For)}
        bounds = {
            nest
            for region in op.regions
            if (
                nest := tuple(
                    (loop.upper,) if loop in self.counted else (same.of(root(loop, steps)), *map(same.of, loop.operands[1:3]))
                    for loop in region.walk()
                    if isinstance(loop, For) and any(getattr(o, "ring", None) is ring for o in loop.regions[0].walk())
                )
            )
        }
        if len(op.regions) > 1 and len(bounds) > 1:
            raise VerifyError(f"{at(op)}: roles go round a ring, and nothing says that they do so equally often")

    def progress(self, parts: list[Role]) -> tuple[int, ...]:
        """Changes whenever a role goes on."""
        counts = [count for ring in self.rings.values() for count in (ring.acquired, ring.committed)]
        each = [(part.waited, part.released, part.taken) for part in parts]
        return (*counts, *(sum(count.values()) for part in each for count in part))

    def loop(self, op: For) -> Steps:
        (body,) = op.regions
        piped, role = is_piped(op), self.role
        first, step = self.env.get(op.lower, 0), self.env.get(op.step, 1)
        held = [self.env.get(value) for value in op.initial]
        rings = any(isinstance(inner, Acquire | Wait) for inner in body.walk())
        exact = piped or op in self.counted
        count = self.turns_of(op) if exact else OUTER_TURNS if rings else 1
        outer, tile = role.turn, role.tile
        for turn in range(count):
            values = [first + step * turn if exact else None, *held]
            self.bind(body.arguments, values)
            if not piped and rings and self.alternate is not None:
                self.bound_of_tile(op, self.alternate if turn % 2 else self.turns)
            role.turn = turn if piped else outer
            role.tile = tile if piped else first + step * turn
            yield from self.block(body)
            held = [self.env.get(value) for value in body.ops[-1].operands]
        role.turn, role.tile = outer, tile
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
            pipelines = any(isinstance(one, RingOp | StageCopy | GroupProduct | WaitMma) for one in Block(ops=[op]).walk())
            if not pipelines:
                return
            if self.role.copies_under_way() or self.role.products:
                raise VerifyError(f"{at(op)}: a pipeline goes on behind a branch")


def _loops_of_tile(tiles: For) -> Iterator[tuple[For, set[Value]]]:
    """Pipelined loops in one around them, and what is computed there, for those with a bound among it."""
    inside = {result for op in tiles.regions[0].walk() for result in op.results} | set(tiles.regions[0].arguments)
    for loop in tiles.regions[0].walk():
        if isinstance(loop, For) and is_piped(loop) and not inside.isdisjoint(loop.operands[:3]):
            yield loop, inside


def _of_tile(function: Function) -> Iterator[For]:
    """Pipelined loops whose bounds follow the tile."""
    for op in function.body.walk():
        if isinstance(op, For) and not is_piped(op):
            yield from (loop for loop, _ in _loops_of_tile(op))


def root(op: For, steps: set[tuple[Value, Value]]) -> Value:
    """Where a loop begins, or where the loop begins of whose later turns one is its first; `steps`: beginnings and steps of
    loops."""
    before = _before(op, op.lower)
    while before is not None:
        if (before, op.step) in steps:
            return before
        before = _before(op, before)
    return op.lower


def _before(op: For, value: Value) -> Value | None:
    """What a value is a step of a loop behind: `x` of `x + step`, or of `x + step if x < upper else x`, which stays at the end;
    None of any other."""
    made = value.owner
    if isinstance(made, Select) and isinstance(made.operands[0].owner, Compare):
        test, following, before = made.operands[0].owner, made.operands[1].owner, made.operands[2]
        stays = test.kind == "lt" and test.operands[0] is before and test.operands[1] is op.upper
        made = following if stays and isinstance(following, Binary) and following.operands[0] is before else None
    added = isinstance(made, Binary) and made.kind == "add" and made.operands[1] is op.step
    return made.operands[0] if isinstance(made, Binary) and added else None


def _constant(value: Value) -> int | None:
    return int(value.owner.value) if isinstance(value.owner, Constant) else None


def is_piped(op: For) -> bool:
    """Whether each turn of a loop takes the next stage of rings outside of it. One around pipelines has their rings in its body
    first, or outside of it and goes through them in the loops in its body."""
    first = next((inner for inner in _own(op.regions[0]) if isinstance(inner, Ring | Acquire | Wait)), None)
    return isinstance(first, Acquire | Wait)


def _own(block: Block) -> Iterator[Op]:
    """What a loop does each turn itself, and not in a loop inside."""
    for op in block.ops:
        yield op
        for region in op.regions if not isinstance(op, For) else ():
            yield from _own(region)
