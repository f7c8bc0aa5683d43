"""Issues the TMA copies of resident tensors into the first stages before the grid dependency wait.

In: a function with one TMA producer loop on an mbarrier ring (`tensor_staging`), after `wait_prior`. Out: the same with the
loop's first iterations peeled, each predicated and in two halves; `roles` gives both, with a wait of its own, to the producer:

    ring of mbarriers; fence; barrier
    each peeled iteration: acquire, copy resident tensors
    wait_prior
    each peeled iteration: copy the other tensors, commit

A stage is full once all expected bytes have arrived, whatever the order of its copies. At small M a GEMM reads mostly weights,
whose first stages then load while the preceding kernel ends. Persistent kernels stay unchanged. The loop's obligation keeps its
variable in i32 only up to one step after the last iteration. Unless ranges show that all peeled iterations fit, the variable
stops there: `following = select(turn < upper, turn + step, turn)`.
"""

from __future__ import annotations

from typing import Final

from tilec.ir.clone import clone
from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.ops import For, If, Yield
from tilec.ir.ops.launch_ops import WaitPrior
from tilec.ir.ops.staging_ops import TensorCopy
from tilec.ir.ops.sync_ops import Acquire, Barrier, Commit, Ring
from tilec.ir.types import i32
from tilec.passes.analysis.ranges import value_ranges
from tilec.passes.schedule.pipelining.staged_products import Emitter
from tilec.target.schedule import Schedule

EARLY_STAGES: Final = 4
"""Prologue stages by default. Each delays the first copy after the wait by about 60 ns (H200); more stages cost more than they
save (docs/decisions.md)."""


def hoist(function: Function, schedule: Schedule) -> Function:
    """Peel the first iterations, in place; a kernel without a producer loop or a wait stays unchanged."""
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
    """Whether `lower + count * step` fits in i32 in every launch, for any number of iterations."""
    ranges = value_ranges(function)
    return ranges[loop.lower].high + count * ranges[loop.step].high <= i32.integer_range()[1]


def _filling(function: Function) -> For | None:
    """The TMA producer loop, if it alone issues TMA copies, fills one ring, and copies some resident tensor; else None."""
    filling = [op for op in function.body.ops if any(isinstance(one, TensorCopy) for one in Block(ops=[op]).walk())]
    loop = filling[0] if len(filling) == 1 else None
    if not isinstance(loop, For) or sum(isinstance(op, Acquire) for op in loop.regions[0].ops) != 1:
        return None
    return loop if any(_is_early(function, op) for op in loop.regions[0].ops) else None


def _is_early(function: Function, op: Op) -> bool:
    return isinstance(op, TensorCopy) and function.is_resident(op.source)


def _part(function: Function, loop: For, first: bool) -> list[Op]:
    """The operations of an iteration before the wait (`first`) or after it, with the operations that they depend on."""
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
    """The ring, its buffers, and the fence and barrier that make its mbarriers visible to all threads."""
    first = next(place for place, op in enumerate(body.ops) if isinstance(op, Ring))
    last = next(place for place, op in enumerate(body.ops) if place > first and isinstance(op, Barrier))
    return body.ops[first : last + 1]
