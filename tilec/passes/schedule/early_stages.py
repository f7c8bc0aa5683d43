"""Has copies of resident tensors under way before a block waits for earlier kernels, where others go into the same stages.

In: a function with one loop that copies through tensor maps into a ring of mbarriers (`tensor_staging`), behind its wait. Out:
the same with the loop's first turns written out, a few or as many as the schedule says, each under its condition and in two
goes:

    ring of mbarriers; fence; barrier
    for each of the first turns:  acquire, copy what is resident       in front of the wait
    wait_prior
    for each of the first turns:  copy the rest, commit                behind it
    the loop, from the turn behind them on

A stage is full once all the bytes that were announced have come, whenever each of its copies was started. Products of few
tokens read little but weights: those of the first stages then come from memory while the kernel before ends. Blocks that take
several tiles stay as they are. `roles` gives both goes, and a wait of its own, to the role that fills.

The loop's own obligation is that its variable fits in i32 up to one step behind its last iteration. Iterations written out may
be further behind, so where ranges do not show that these fit too, the variable stays once it is at the end:

    following = select(turn < upper, turn + step, turn)
"""

from __future__ import annotations

from typing import Final

from tilec.ir.clone import clone
from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.ops import For, If, Yield
from tilec.ir.ops_launch import WaitPrior
from tilec.ir.ops_staging import TensorCopy
from tilec.ir.ops_sync import Acquire, Barrier, Commit, Ring
from tilec.ir.types import i32
from tilec.passes.analysis.ranges import value_ranges
from tilec.passes.schedule.staged_products import Emitter
from tilec.schedule import Schedule

EARLY_STAGES: Final = 4
"""Filled early where a schedule says nothing: each puts the first copy behind the wait off by about 60 ns (H200), which more of
them cost than they save (docs/decisions.md)."""


def hoist(function: Function, schedule: Schedule) -> Function:
    """Write out the first turns, in place, where a kernel has such a loop and waits."""
    body = function.body
    loop, wait = _filling(function), next((op for op in body.ops if isinstance(op, WaitPrior)), None)
    if loop is None or wait is None:
        return function
    stages = next(op for op in loop.regions[0].ops if isinstance(op, Acquire)).ring.ring.stages
    count = min(EARLY_STAGES if schedule.early is None else schedule.early, stages)
    if not count:
        return function
    early, late = Emitter(), Emitter()
    turn, room = loop.lower, _has_room(function, loop, count)
    for stage in range(count):
        place = [early.number(stage), early.number(0)]
        condition = early.compare("lt", turn, loop.upper)
        for out, first in ((early, True), (late, False)):
            inside = dict(zip(loop.regions[0].arguments, [turn, *place], strict=True))
            part = clone(_part(function, loop, first), inside)
            out.add(If(operands=[condition], regions=[Block(ops=[*part, Yield()]), Block(ops=[Yield()])]))
        following = early.binary("add", turn, loop.step)
        turn = following if room else early.select(condition, following, turn)
    loop.operands[0] = turn
    loop.operands[3:] = [early.number(count % stages), early.number(count // stages)]
    setup = _setup(body)
    rest = [op for op in body.ops if op not in setup]
    waits, fills = rest.index(wait), rest.index(loop)
    body.ops = [*setup, *rest[:waits], *early.ops, *rest[waits:fills], *late.ops, *rest[fills:]]
    return function


def _has_room(function: Function, loop: For, count: int) -> bool:
    """Whether so many steps from the loop's beginning fit in i32 in every launch, however few iterations it has."""
    ranges = value_ranges(function)
    return ranges[loop.lower].high + count * ranges[loop.step].high <= i32.integer_range()[1]


def _filling(function: Function) -> For | None:
    """The loop that fills a ring of mbarriers, where it is the only operation that fills one and copies what is resident."""
    filling = [op for op in function.body.ops if any(isinstance(one, TensorCopy) for one in Block(ops=[op]).walk())]
    loop = filling[0] if len(filling) == 1 else None
    if not isinstance(loop, For) or sum(isinstance(op, Acquire) for op in loop.regions[0].ops) != 1:
        return None
    return loop if any(_is_early(function, op) for op in loop.regions[0].ops) else None


def _is_early(function: Function, op: Op) -> bool:
    return isinstance(op, TensorCopy) and function.is_resident(op.source)


def _part(function: Function, loop: For, first: bool) -> list[Op]:
    """What a turn does in front of the wait, or behind it, and what that follows from."""
    ops = loop.regions[0].ops[:-1]
    chosen: set[Op] = {
        op
        for op in ops
        if (isinstance(op, Acquire | TensorCopy) and (isinstance(op, Acquire) or _is_early(function, op)) is first)
        or (isinstance(op, Commit) and not first)
    }
    wanted: set[Value] = set()
    for op in reversed(ops):
        if op in chosen or not wanted.isdisjoint(op.results):
            chosen.add(op)
            wanted.update(op.operands)
    return [op for op in ops if op in chosen]


def _setup(body: Block) -> list[Op]:
    """The ring, its memory, and where all threads come to know of it."""
    first = next(place for place, op in enumerate(body.ops) if isinstance(op, Ring))
    last = next(place for place, op in enumerate(body.ops) if place > first and isinstance(op, Barrier))
    return body.ops[first : last + 1]
