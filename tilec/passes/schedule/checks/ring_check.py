"""Checks pipelines by simulation: stages are neither overwritten while in use nor read before their copy, and nothing
deadlocks.

In: a prepared function. Out: nothing, or a VerifyError that names the operation. `barrier_check` has the accesses that barriers
order; this has those that ring operations order (rules: `ring_steps`). It runs every pipelined loop for 0, 1, 2, s (the stages)
and 2 s + 1 iterations, and for all counts up to s + 1 if iterations are peeled. An iteration's behavior depends only on its
ring position and the copies in flight, so further iterations repeat these states. Scalars not computed from the loop bounds are
unknown.

Roles run as coroutines, each until it blocks on an mbarrier. Rings are FIFO queues, so results do not depend on the
interleaving, and a state in which all roles block is a deadlock.

Arithmetic wraps at its dtype's width (`ring_state.number`). If a lower bound or step is not constant, further runs use the
largest value within i32 and its range; runs that break the loop's obligation (its variable fits up to one step after the last
iteration) are skipped. Iteration counts are unbounded integers; `width_check` shows that arithmetic of further iterations fits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import gcd
from typing import Final

from tilec.ir.core import Block, Function, Op, Value, VerifyError
from tilec.ir.facts.touches import touches
from tilec.ir.ops import Binary, Compare, Constant, For, If, Select
from tilec.ir.ops.staging_ops import GroupProduct, StageCopy, WaitMma
from tilec.ir.ops.sync_ops import Acquire, Ring, RingOp, Roles, TakeTurn, Wait
from tilec.ir.types import i32
from tilec.passes.analysis.ranges import Range, value_ranges
from tilec.passes.schedule.checks.ring_state import Role
from tilec.passes.schedule.checks.ring_steps import Operations, Steps, at
from tilec.passes.schedule.specialization.equal_scalars import Meanings

_STEERING: Final = (For, If, Roles, Acquire, Wait, TakeTurn)
OUTER_TURNS = 2  # iterations of loops around pipelines: the second one starts from the state that the first one leaves
FIRST, LAST = i32.integer_range()
FAR: Final = ("steps", "beginning")
"""The loop operand that a run puts at the end of i32."""


def check(function: Function) -> None:
    """Raise VerifyError if a pipeline reads or writes a stage too early, or deadlocks. Kernels without rings pass."""
    most = max((op.result.ring.stages for op in function.body.walk() if isinstance(op, Ring)), default=0)
    if not most:
        return
    found = touches(function)
    loops = [op for op in function.body.walk() if isinstance(op, For) and is_piped(op)]
    begins = [first for op in loops if (first := _constant(op.lower)) is not None]
    # Loops with one upper bound and different lower bounds differ in iteration count: one run is longer by the largest
    # difference.
    numbers = {0, 1, 2, most, 2 * most + 1, 2 * most + 1 + min(64, max(begins, default=0))}
    if _is_peeled(function):  # each peeled iteration has its own condition
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
    """Whether the first iterations of a producer loop on an mbarrier ring are peeled."""
    branches = [op for op in function.body.walk() if isinstance(op, If)]
    inside = (one for op in branches for region in op.regions for one in region.ops)
    return any(isinstance(one, Acquire) and len(one.operands) > 1 for one in inside)


def _in_turns(stages: int, takers: int) -> list[tuple[int, int, str]]:
    """Iteration counts of the pipelined loops, with tile counts, for rings that consumers read round-robin. A tile's number and
    the iteration count determine the tile's first ring position. So all iteration counts up to 2 * `stages` + 1 are tried, each
    with enough tiles that these positions repeat."""
    places = 2 * stages
    few = [(turns, tiles, "") for turns in (1, stages) for tiles in range(takers + 2)]
    return [*few, *((turns, places // gcd(turns, places) + takers, "") for turns in (*range(places + 1), places + 1))]


@dataclass(eq=False, slots=True)
class _Run(Operations):
    turns: int = 0
    far: str = ""  # one of `FAR`, or empty
    ranges: dict[Value, Range] = field(default_factory=dict[Value, Range])  # set if some run has `far`
    alternate: int | None = None  # iterations in every second tile of loops with tile-dependent bounds; None: `turns`
    counted: set[For] = field(default_factory=set[For])  # tile loops whose iterations are simulated with exact values

    def count(self, function: Function, tiles: int) -> None:
        """Set the upper bound of all loops around the pipelines to `tiles`."""
        for op in function.body.walk():
            rings = any(isinstance(inner, Acquire | Wait) for region in op.regions for inner in region.walk())
            if isinstance(op, For) and rings and not is_piped(op):
                self.counted.add(op)
                self.choose(op.upper, tiles, keep=False)

    def bound(self, loops: list[For]) -> bool:
        """Choose the bounds of all pipelined loops so that each runs `turns` iterations. Constant lower bounds and steps keep
        their values. The iteration count follows from the operands if a constant is also an upper bound, as in `range(1)`, if a
        loop starts whole steps after another one, or if it shares another one's upper bound. False if a loop variable would
        leave i32, which the loop's obligation excludes."""
        ends = {op.upper for op in loops}
        others = {value for op in loops for value in (op.lower, op.step)}
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
            self.choose(op.upper, self.env[op.lower] + self.env[op.step] * self.turns, keep=op.upper in others)
        numbers = [(self.env[op.lower], self.env[op.lower] + self.env[op.step] * self.turns_of(op)) for op in roots]
        return all(begin >= FIRST and behind <= LAST for begin, behind in numbers)

    def bound_of_tile(self, tiles: For, turns: int) -> None:
        """Choose the bounds that depend on the tile, so that its pipelined loops run `turns` iterations. Values inside the tile
        loop belong to one role, since roles may be at different tiles."""
        for loop, inside in _loops_of_tile(tiles):
            if loop.upper in inside:
                self.env[loop.upper] = self.env[loop.lower] + self.env[loop.step] * turns
            elif loop.lower in inside and loop.lower in self.fixed:
                self.env[loop.lower] = self.env[loop.upper] - self.env[loop.step] * turns
            elif loop.step in inside:  # a loop with lower < upper runs at least one iteration, however large its step
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
        """Run the regions as coroutines, each until it blocks on another."""
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
        """Check that roles on one ring iterate equally often. Iteration counts are chosen rather than known, so the loop nests
        of all roles on the ring must have equal bounds. Each role computes tile-dependent bounds itself, equally for the same
        tile."""
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
        """A value that changes whenever some role makes progress."""
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
                continue  # a bound of an inner pipelined loop, chosen for all iterations
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
    """Pipelined loops in `tiles` with a bound computed there, each with all values defined in `tiles`."""
    inside = {result for op in tiles.regions[0].walk() for result in op.results} | set(tiles.regions[0].arguments)
    for loop in tiles.regions[0].walk():
        if isinstance(loop, For) and is_piped(loop) and not inside.isdisjoint(loop.operands[:3]):
            yield loop, inside


def _of_tile(function: Function) -> Iterator[For]:
    """Pipelined loops whose bounds depend on the tile."""
    for op in function.body.walk():
        if isinstance(op, For) and not is_piped(op):
            yield from (loop for loop, _ in _loops_of_tile(op))


def root(op: For, steps: set[tuple[Value, Value]]) -> Value:
    """The lower bound of a loop, or of the loop it continues: one with the same step that starts whole steps earlier. `steps`:
    lower bound and step of each loop."""
    before = _before(op, op.lower)
    while before is not None:
        if (before, op.step) in steps:
            return before
        before = _before(op, before)
    return op.lower


def _before(op: For, value: Value) -> Value | None:
    """`x` if the value is `x + step`, or `x + step if x < upper else x`, which stops at the end; else None."""
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
    """Whether each iteration of a loop uses the next stage of a ring from outside of it. A loop around pipelines instead
    creates their rings in its body, or uses outer rings only in nested loops."""
    first = next((inner for inner in _own(op.regions[0]) if isinstance(inner, Ring | Acquire | Wait)), None)
    return isinstance(first, Acquire | Wait)


def _own(block: Block) -> Iterator[Op]:
    """Operations of a block, branches included, nested loops' bodies excluded."""
    for op in block.ops:
        yield op
        for region in op.regions if not isinstance(op, For) else ():
            yield from _own(region)
