"""Checks pipelines by simulation: stages are neither overwritten while in use nor read before their copy, and nothing
deadlocks.

In: a prepared function. Out: nothing, or a VerifyError that names the operation. `barrier_check` has the accesses that barriers
order; this has those that ring operations order (rules: `ring_steps`). It runs every pipelined loop for 0, 1, 2, s (the stages)
and 2 s + 1 iterations, for none with an upper bound below the lower one, and for all counts up to s + 1 if iterations are
peeled. An iteration's behavior depends only on its
ring position and the copies in flight, so further iterations repeat these states. Scalars not computed from the loop bounds are
unknown.

Roles run as coroutines, each until it blocks on an mbarrier. Rings are FIFO queues, so results do not depend on the
interleaving, and a state in which all roles block is a deadlock.

Arithmetic wraps at its dtype's width (`ring_state.evaluate`). If a lower bound or step is not constant, further runs use the
largest value within i32 and its range; runs that break the loop's obligation (its variable fits up to one step after the last
iteration) are skipped. Iteration counts are unbounded integers; `width_check` shows that arithmetic of further iterations fits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from math import gcd
from typing import Final

from tilec.ir.core import Access, Block, Function, Op, Value, VerifyError
from tilec.ir.facts.touches import touches
from tilec.ir.ops import Binary, Compare, Constant, For, If, Select
from tilec.ir.ops.signal_ops import OWN, Await, SignalOp
from tilec.ir.ops.staging_ops import GroupProduct, StageCopy, WaitMma
from tilec.ir.ops.sync_ops import Acquire, OrderWait, Ring, RingOp, Roles, Wait
from tilec.ir.ops.tmem_chain_ops import TmemRows, TmemStore
from tilec.ir.ops.tmem_ops import TmemAlloc, TmemLoad
from tilec.ir.types import i32
from tilec.passes.analysis.ranges import Range, value_ranges
from tilec.passes.schedule.checks.op_location import at
from tilec.passes.schedule.checks.ring_state import Role
from tilec.passes.schedule.checks.ring_steps import Operations, Steps
from tilec.passes.schedule.specialization.equal_scalars import ScalarNumbering

_CONTROL_OPS: Final = (For, If, Roles, Acquire, Wait, OrderWait, Await)
_ORDERED: Final = (RingOp, StageCopy, GroupProduct, WaitMma, TmemLoad, SignalOp, TmemStore, TmemRows)
OUTER_ITERATIONS = 2  # iterations of loops around pipelines: the second one starts from the state that the first one leaves
FIRST, LAST = i32.integer_range()
AT_LIMIT: Final = ("steps", "beginning")
"""The loop operand that a run puts at the end of i32."""


def check(function: Function) -> None:
    """Raise VerifyError if a pipeline reads or writes a stage too early, or deadlocks. Kernels without rings pass."""
    most = max((op.result.ring.stages for op in function.body.walk() if isinstance(op, Ring)), default=0)
    if not most:
        return
    found = touches(function)
    constant = {parameter.value for parameter in function.parameters if parameter.access is Access.IN}
    loops = pipelined_loops(function)
    starts = [first for op in loops if (first := _constant(op.lower)) is not None]
    # Loops with one upper bound and different lower bounds differ in iteration count: one run is longer by the largest
    # difference.
    iteration_counts = {-1, 0, 1, 2, most, 2 * most + 1, 2 * most + 1 + min(64, max(starts, default=0))}
    if _is_peeled(function):  # each peeled iteration has its own condition
        iteration_counts |= set(range(most + 2))
    runs = [(iterations, 0, "") for iterations in sorted(iteration_counts)]
    ranges: dict[Value, Range] = {}
    if not all(isinstance(value.owner, Constant) for op in loops for value in (op.lower, op.step)):
        ranges = value_ranges(function)
        runs += [(iterations, 0, at_limit) for iterations in (0, 1, 2, most) for at_limit in AT_LIMIT]
    consumers = max((op.consumer_roles for op in function.body.walk() if isinstance(op, Ring)), default=1)
    alternates: tuple[int | None, ...] = (0, 1, most + 1) if any(_loops_with_tile_bounds(function, loops)) else (None,)
    results = max((op.result.tmem.stages for op in function.body.walk() if isinstance(op, TmemAlloc)), default=0)
    if results:  # tiles wrap around the accumulators as well
        runs = [(iterations, tiles, at_limit) for iterations, _, at_limit in runs for tiles in (1, 2, 2 * results + 1)]
    each = [
        (iterations, tiles, at_limit, alternate)
        for iterations, tiles, at_limit in (runs if consumers == 1 else _round_robin_runs(most, consumers))
        for alternate in ((None,) if at_limit else alternates)
    ]
    for iterations, tiles, at_limit, alternate in each:
        run = _Run(
            found, pipelined=set(loops), iterations=iterations, at_limit=at_limit, ranges=ranges, alternate=alternate,
            constant=constant,
        )  # fmt: skip
        if not run.choose_bounds(loops):
            continue
        if consumers > 1 or results:
            run.set_tile_count(function, tiles)
        for op in run.block(function.body):
            raise VerifyError(f"{at(op)} waits for ever")
        run.end(f"{function.name}: copies or products are under way at the end")


def _is_peeled(function: Function) -> bool:
    """Whether the first iterations of a producer loop on an mbarrier ring are peeled."""
    branches = [op for op in function.body.walk() if isinstance(op, If)]
    inside = (inner for op in branches for region in op.regions for inner in region.ops)
    return any(isinstance(inner, Acquire) and len(inner.operands) > 1 for inner in inside)


def _round_robin_runs(stages: int, consumer_roles: int) -> list[tuple[int, int, str]]:
    """Iteration counts of the pipelined loops, with tile counts, for rings that consumers read round-robin. A tile's number and
    the iteration count determine the tile's first ring position. So all iteration counts up to 2 * `stages` + 1 are tried, each
    with enough tiles that these positions repeat."""
    positions = 2 * stages
    short_runs = [(iterations, tiles, "") for iterations in (1, stages) for tiles in range(consumer_roles + 2)]
    return [
        *short_runs,
        *(
            (iterations, positions // gcd(iterations, positions) + consumer_roles, "")
            for iterations in (*range(positions + 1), positions + 1)
        ),
    ]


@dataclass(eq=False, slots=True)
class _Run(Operations):
    pipelined: set[For] = field(default_factory=set[For])
    iterations: int = 0
    at_limit: str = ""  # one of `AT_LIMIT`, or empty
    ranges: dict[Value, Range] = field(default_factory=dict[Value, Range])  # set if some run has `at_limit`
    alternate: int | None = None  # iterations in every second tile of loops with tile-dependent bounds; None: `iterations`
    constant: Collection[Value] = ()  # tensors that nobody writes
    counted: set[For] = field(default_factory=set[For])  # tile loops whose iterations are simulated with exact values

    def set_tile_count(self, function: Function, tiles: int) -> None:
        """Set the upper bound of all loops around the pipelines to `tiles`."""
        for op in function.body.walk():
            rings = any(isinstance(inner, Acquire | Wait) for region in op.regions for inner in region.walk())
            if isinstance(op, For) and rings and op not in self.pipelined:
                self.counted.add(op)
                self.choose(op.upper, tiles, keep=False)

    def choose_bounds(self, loops: list[For]) -> bool:
        """Choose the bounds of all pipelined loops so that each runs `iterations` iterations. Constant lower bounds and steps
        keep their values. The iteration count follows from the operands if a constant is also an upper bound, as in `range(1)`,
        if a loop starts whole steps after another one, or if it shares another one's upper bound. False if a loop variable
        would leave i32, which the loop's obligation excludes."""
        upper_bounds = {op.upper for op in loops}
        others = {value for op in loops for value in (op.lower, op.step)}
        steps = {(op.lower, op.step) for op in loops}
        roots = [loop for loop in loops if root(loop, steps) is loop.lower]
        for op in roots:
            first, step = (self.iterations if value in upper_bounds else 0 for value in (op.lower, op.step))
            if self.at_limit == "steps" and op.step not in upper_bounds:
                step = min((LAST - (_constant(op.lower) or 0)) // max(self.iterations, 1), self.ranges[op.step].high)
            self.choose(op.step, max(step, 1), keep=True)
            if self.at_limit == "beginning" and op.lower not in upper_bounds:
                first = min(LAST - self.iterations * self.env[op.step], self.ranges[op.lower].high)
            self.choose(op.lower, first, keep=True)
        for op in roots:
            self.choose(op.upper, self.env[op.lower] + self.env[op.step] * self.iterations, keep=op.upper in others)
        ranges = [(self.env[op.lower], self.env[op.lower] + self.env[op.step] * self.iterations_of(op)) for op in roots]
        return all(start >= FIRST and past_end <= LAST for start, past_end in ranges)

    def choose_tile_bounds(self, tiles: For, iterations: int) -> None:
        """Choose the bounds that depend on the tile, so that its pipelined loops run `iterations` iterations. Values inside the
        tile loop belong to one role, since roles may be at different tiles."""
        for loop, inside in _tile_dependent_bounds(tiles, self.pipelined):
            if loop.upper in inside:
                self.env[loop.upper] = self.env[loop.lower] + self.env[loop.step] * iterations
            elif loop.lower in inside and loop.lower in self.fixed:
                self.env[loop.lower] = self.env[loop.upper] - self.env[loop.step] * iterations
            elif loop.step in inside:  # a loop with lower < upper runs at least one iteration, however large its step
                self.env[loop.step] = max(1, -((self.env[loop.lower] - self.env[loop.upper]) // max(1, iterations)))

    def choose(self, value: Value, otherwise: int, *, keep: bool) -> None:
        if value not in self.fixed:
            known = _constant(value) if keep else None
            self.env[value] = otherwise if known is None else known
            self.fixed.add(value)

    def block(self, block: Block) -> Steps:
        for op in block.ops:
            if not isinstance(op, _CONTROL_OPS):
                self.step(op)
            elif isinstance(op, For):
                yield from self.loop(op)
            elif isinstance(op, If):
                yield from self.branch(op)
            elif isinstance(op, Roles):
                self.roles(op)
            elif isinstance(op, Acquire):
                yield from self.acquire(op)
            elif isinstance(op, Await):
                yield from self.await_signal(op)
            else:
                yield from self.wait(op) if isinstance(op, Wait) else self.order_wait(op)

    def roles(self, op: Roles) -> None:
        """Run the regions as coroutines, each until it blocks on another."""
        outer_role, outer_concurrent = self.role, self.concurrent
        if outer_role.copies_in_flight() or outer_role.products:
            raise VerifyError(f"{at(op)}: copies or products are under way")
        parts = [(region, part) for region in op.regions for part in range(parts_of(region))]
        inner_roles = [Role(iteration=outer_role.iteration, part=part) for _, part in parts]
        for value, ring in self.rings.items():
            readers = [
                inner_role
                for inner_role, (region, _) in zip(inner_roles, parts, strict=True)
                if any(isinstance(inner, Wait) and inner.ring is value for inner in region.walk())
            ]
            ring.readers = readers or [outer_role]
            producers = [
                region
                for region in op.regions
                if any(isinstance(inner, Acquire) and inner.ring is value for inner in region.walk())
            ]
            if len(producers) > 1 or (len(op.regions) > 1 and (producers or readers) and ring.by_groups):
                raise VerifyError(f"{at(op)}: a ring is filled by one role, and its mbarriers tell the others")
            for inner_role in inner_roles:
                inner_role.waited[value], inner_role.released[value] = outer_role.waited[value], outer_role.released[value]
            self.check_equal_iterations(op, value)
        for value in self.order.signals():
            self.check_equal_iterations(op, value)
        self.concurrent = len(inner_roles) > 1
        active = {inner_role: self.block(region) for inner_role, (region, _) in zip(inner_roles, parts, strict=True)}
        outer_env = self.env
        envs = {inner_role: dict(outer_env) for inner_role in inner_roles}  # parts of a role run the same operations
        blocked: dict[Role, Op] = {}
        while active:
            before = self.progress(inner_roles)
            for inner_role, steps in list(active.items()):
                self.role, self.env = inner_role, envs[inner_role]
                blocked_at = next(steps, None)
                if blocked_at is None:
                    del active[inner_role]
                    blocked.pop(inner_role, None)
                    if inner_role.copies_in_flight() or inner_role.products:
                        raise VerifyError(f"{at(op)}: a role leaves copies or products under way")
                else:
                    blocked[inner_role] = blocked_at
            if active and len(blocked) == len(active) and self.progress(inner_roles) == before:
                raise VerifyError(
                    f"{at(op)}: no role goes on: {', '.join(at(inner) for inner in blocked.values())} waits for ever"
                )
        self.role, self.concurrent, self.env = outer_role, outer_concurrent, outer_env
        for value, ring in self.rings.items():
            for set_tile_count in (outer_role.waited, outer_role.released):
                counts = [
                    (inner_role.waited if set_tile_count is outer_role.waited else inner_role.released)[value]
                    for inner_role in ring.readers
                ]
                set_tile_count[value] = max(counts) if ring.round_robin else min(counts)
            ring.free = outer_role.released[value]
            ring.readers = [outer_role]
        self.read.clear()

    def check_equal_iterations(self, op: Roles, ring: Value) -> None:
        """Check that roles on one ring iterate equally often. Iteration counts are chosen rather than known, so the loop nests
        of all roles on the ring must have equal bounds. Each role computes tile-dependent bounds itself, equally for the same
        tile."""
        numbering = ScalarNumbering(op, self.constant)
        steps = {(loop.lower, loop.step) for region in op.regions for loop in region.walk() if isinstance(loop, For)}
        bounds = {
            nest
            for region in op.regions
            if (
                nest := tuple(
                    (loop.upper,)
                    if loop in self.counted
                    else (numbering.of(root(loop, steps)), *map(numbering.of, loop.operands[1:3]))
                    for loop in region.walk()
                    if isinstance(loop, For) and any(getattr(inner, "ring", None) is ring for inner in loop.regions[0].walk())
                )
            )
        }
        if len(op.regions) > 1 and len(bounds) > 1:
            raise VerifyError(f"{at(op)}: several roles wrap around a ring, and nothing says that they do so equally often")

    def progress(self, role_states: list[Role]) -> tuple[int, ...]:
        """A value that changes whenever some role makes progress."""
        counts = [set_tile_count for ring in self.rings.values() for set_tile_count in (ring.acquired, ring.committed)]
        counters = [(role.waited, role.released, role.taken) for role in role_states]
        return (self.order.progress(), *counts, *(sum(set_tile_count.values()) for role in counters for set_tile_count in role))

    def loop(self, op: For) -> Steps:
        (body,) = op.regions
        pipelined, role = op in self.pipelined, self.role
        first, step = self.env.get(op.lower, 0), self.env.get(op.step, 1)
        carried = [self.env.get(value) for value in op.initial]
        rings = any(isinstance(inner, Acquire | Wait | Await) for inner in body.walk())
        exact = pipelined or op in self.counted
        set_tile_count = self.iterations_of(op) if exact else OUTER_ITERATIONS if rings else 1
        outer_iteration, tile = role.iteration, role.tile
        for iteration in range(set_tile_count):
            values = [first + step * iteration if exact else None, *carried]
            self.bind(body.arguments, values)
            if not pipelined and rings and self.alternate is not None:
                self.choose_tile_bounds(op, self.alternate if iteration % 2 else self.iterations)
            role.iteration = iteration if pipelined else outer_iteration
            role.tile = tile if pipelined else first + step * iteration
            yield from self.block(body)
            carried = [self.env.get(value) for value in body.ops[-1].operands]
        role.iteration, role.tile = outer_iteration, tile
        self.bind(op.results, carried)

    def iterations_of(self, op: For) -> int:
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
            has_pipeline = any(isinstance(inner, _ORDERED) for inner in Block(ops=[op]).walk())
            if not has_pipeline:
                return
            if self.role.copies_in_flight() or self.role.products:
                raise VerifyError(f"{at(op)}: a pipeline continues after a branch")
            if any(isinstance(inner, SignalOp) for inner in Block(ops=[op]).walk()):
                raise VerifyError(f"{at(op)}: whether a branch sends or awaits signals is unknown")


def parts_of(region: Block) -> int:
    """Parts of a role: groups of warps that await and send signals of their own."""
    return max((op.signals.parts for op in region.walk() if isinstance(op, SignalOp) and op.part == OWN), default=1)


def _tile_dependent_bounds(tiles: For, pipelined: Collection[For]) -> Iterator[tuple[For, set[Value]]]:
    """Pipelined loops in `tiles` with a bound computed there, each with all values defined in `tiles`."""
    inside = {result for op in tiles.regions[0].walk() for result in op.results} | set(tiles.regions[0].arguments)
    for loop in tiles.regions[0].walk():
        if isinstance(loop, For) and loop in pipelined and not inside.isdisjoint(loop.operands[:3]):
            yield loop, inside


def _loops_with_tile_bounds(function: Function, pipelined: list[For]) -> Iterator[For]:
    """Pipelined loops whose bounds depend on the tile."""
    for op in function.body.walk():
        if isinstance(op, For) and op not in pipelined:
            yield from (loop for loop, _ in _tile_dependent_bounds(op, pipelined))


def root(op: For, steps: set[tuple[Value, Value]]) -> Value:
    """The lower bound of a loop, or of the loop it continues: one with the same step that starts whole steps earlier. `steps`:
    lower bound and step of each loop."""
    before = _previous_start(op, op.lower)
    while before is not None:
        if (before, op.step) in steps:
            return before
        before = _previous_start(op, before)
    return op.lower


def _previous_start(op: For, value: Value) -> Value | None:
    """`x` if the value is `x + step`, or `x + step if x < upper else x`, which stops at the end; else None."""
    owner = value.owner
    if isinstance(owner, Select) and isinstance(owner.operands[0].owner, Compare):
        test, following, before = owner.operands[0].owner, owner.operands[1].owner, owner.operands[2]
        stops = test.kind == "lt" and test.operands[0] is before and test.operands[1] is op.upper
        owner = following if stops and isinstance(following, Binary) and following.operands[0] is before else None
    added = isinstance(owner, Binary) and owner.kind == "add" and owner.operands[1] is op.step
    return owner.operands[0] if isinstance(owner, Binary) and added else None


def _constant(value: Value) -> int | None:
    return int(value.owner.value) if isinstance(value.owner, Constant) else None


def is_pipelined(op: For) -> bool:
    """Whether each iteration of a loop uses the next stage of a ring from outside of it. A loop around pipelines instead
    creates their rings in its body, or uses outer rings only in nested loops."""
    found = (inner for inner in _ops_outside_loops(op.regions[0]) if isinstance(inner, Ring | Acquire | Wait | Await))
    return not isinstance(next(found, None), Ring | None)


def pipelined_loops(function: Function) -> list[For]:
    """All loops whose iterations use the next stage of a ring, tile loops excluded: a loop around another one that does so,
    and the loops of other roles with its bounds. Their iterations use a stage of a ring too if products fill accumulators."""
    loops = [op for op in function.body.walk() if isinstance(op, For)]
    around = [op for op in loops if any(isinstance(inner, For) and is_pipelined(inner) for inner in op.regions[0].walk())]
    bounds = {tuple(op.operands[:3]) for op in around}
    nested = {inner for op in around for inner in op.regions[0].walk()}  # with equal bounds too, perhaps
    of_roles = {inner for op in function.body.walk() if isinstance(op, Roles) for part in op.regions for inner in part.walk()}
    alike = {op for op in loops if op in of_roles and op not in nested and tuple(op.operands[:3]) in bounds}
    tiles = [op for op in loops if op in around or op in alike]
    return [op for op in loops if is_pipelined(op) and op not in tiles]


def _ops_outside_loops(block: Block) -> Iterator[Op]:
    """Operations of a block, branches included, nested loops' bodies excluded."""
    for op in block.ops:
        yield op
        for region in op.regions if not isinstance(op, For) else ():
            yield from _ops_outside_loops(region)
