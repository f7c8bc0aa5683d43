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
from tilec.ir.ops.launch_ops import DependencyWait
from tilec.ir.ops.staging_ops import TensorCopy
from tilec.ir.ops.sync_ops import Acquire, Barrier, Commit, Ring
from tilec.ir.types import i32
from tilec.passes.analysis.ranges import value_ranges
from tilec.passes.schedule.pipelining.staged_products import Emitter
from tilec.target.schedule import Schedule

PROLOGUE_STAGES: Final = 4
"""Prologue stages by default. Each delays the first copy after the wait by about 60 ns (H200); more stages cost more than they
save (docs/decisions.md)."""


def hoist(function: Function, schedule: Schedule) -> Function:
    """Peel the first iterations, in place; a kernel without a producer loop or a wait stays unchanged."""
    body = function.body
    loop, wait = _producer_loop(function), next((op for op in body.ops if isinstance(op, DependencyWait)), None)
    if loop is None or wait is None:
        return function
    stages = next(op for op in loop.regions[0].ops if isinstance(op, Acquire)).ring.ring.stages
    count = min(PROLOGUE_STAGES if schedule.early is None else schedule.early, stages)
    if not count:
        return function
    before_wait, after_wait = Emitter(), Emitter()
    variable, has_room = loop.lower, _fits_i32(function, loop, count)
    for stage in range(count):
        position = [before_wait.number(stage), before_wait.number(0)]
        condition = before_wait.compare("lt", variable, loop.upper)
        for out, first in ((before_wait, True), (after_wait, False)):
            mapping = dict(zip(loop.regions[0].arguments, [variable, *position], strict=True))
            part = clone(_part(function, loop, first), mapping)
            out.add(If(operands=[condition], regions=[Block(ops=[*part, Yield()]), Block(ops=[Yield()])]))
        next_variable = before_wait.binary("add", variable, loop.step)
        variable = next_variable if has_room else before_wait.select(condition, next_variable, variable)
    loop.operands[0] = variable
    loop.operands[3:] = [before_wait.number(count % stages), before_wait.number(count // stages)]
    setup = _setup(body)
    rest = [op for op in body.ops if op not in setup]
    wait_index, loop_index = rest.index(wait), rest.index(loop)
    body.ops = [*setup, *rest[:wait_index], *before_wait.ops, *rest[wait_index:loop_index], *after_wait.ops, *rest[loop_index:]]
    return function


def _fits_i32(function: Function, loop: For, count: int) -> bool:
    """Whether `lower + count * step` fits in i32 in every launch, for any number of iterations."""
    ranges = value_ranges(function)
    return ranges[loop.lower].high + count * ranges[loop.step].high <= i32.integer_range()[1]


def _producer_loop(function: Function) -> For | None:
    """The TMA producer loop, if it alone issues TMA copies, fills one ring, and copies some resident tensor; else None."""
    copying_ops = [op for op in function.body.ops if any(isinstance(inner, TensorCopy) for inner in Block(ops=[op]).walk())]
    loop = copying_ops[0] if len(copying_ops) == 1 else None
    if not isinstance(loop, For) or sum(isinstance(op, Acquire) for op in loop.regions[0].ops) != 1:
        return None
    return loop if any(_may_precede_wait(function, op) for op in loop.regions[0].ops) else None


def _may_precede_wait(function: Function, op: Op) -> bool:
    return isinstance(op, TensorCopy) and function.is_resident(op.source)


def _part(function: Function, loop: For, first: bool) -> list[Op]:
    """The operations of an iteration before the wait (`first`) or after it, with the operations that they depend on."""
    ops = loop.regions[0].ops[:-1]
    chosen: set[Op] = {
        op
        for op in ops
        if (isinstance(op, Acquire | TensorCopy) and (isinstance(op, Acquire) or _may_precede_wait(function, op)) is first)
        or (isinstance(op, Commit) and not first)
    }
    needed: set[Value] = set()
    for op in reversed(ops):
        if op in chosen or not needed.isdisjoint(op.results):
            chosen.add(op)
            needed.update(op.operands)
    return [op for op in ops if op in chosen]


def _setup(body: Block) -> list[Op]:
    """The ring, its buffers, and the fence and barrier that make its mbarriers visible to all threads."""
    first = next(index for index, op in enumerate(body.ops) if isinstance(op, Ring))
    last = next(index for index, op in enumerate(body.ops) if index > first and isinstance(op, Barrier))
    return body.ops[first : last + 1]
