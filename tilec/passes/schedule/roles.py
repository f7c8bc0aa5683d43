"""Gives each role of a block its part of a kernel.

In: a function in which one loop fills a ring of mbarriers (`tensor_staging`) and all else is for the warps that hold tiles; it
is prepared for these alone. Out: the same in `roles`. What all threads need and each can make by itself stays in front: launch
values, and the ring with its barriers, of which all must know. Barriers behind it are of the role.
"""

from __future__ import annotations

from tilec.ir.core import Block, Function, Op
from tilec.ir.ops import For
from tilec.ir.ops_launch import WaitPrior
from tilec.ir.ops_sync import Acquire, Barrier, Ring, Roles
from tilec.passes.schedule.wait_prior import launch_values
from tilec.schedule import Schedule


def split(function: Function, schedule: Schedule) -> Function:
    """Make the roles, in place; a kernel of one role stays as it is."""
    if len(schedule.roles) == 1:
        return function
    body = function.body
    (filling,) = [op for op in body.ops if isinstance(op, For) and _fills(op)]
    ring = next(i for i, op in enumerate(body.ops) if isinstance(op, Ring))
    met = next(i for i, op in enumerate(body.ops) if i > ring and isinstance(op, Barrier))
    setup = body.ops[ring : met + 1]
    known = launch_values(function)

    def is_shared(op: Op) -> bool:
        return isinstance(op, WaitPrior) or op in setup or bool(op.results and set(op.results) <= known)

    kept = [op for op in body.ops if is_shared(op)]
    reading = Block(ops=[op for op in body.ops if op is not filling and not is_shared(op)])
    for op in reading.walk():
        if isinstance(op, Barrier):
            op.scope = "role"
    roles = schedule.roles
    made = Roles(
        names=tuple(role.name for role in roles),
        warps=tuple(role.warps for role in roles),
        registers=tuple(role.registers or 0 for role in roles),
        alone=(False, True),
        regions=[reading, Block(ops=[filling])],
    )
    body.ops = [*kept, made]
    function.num_warps = schedule.warps
    return function


def _fills(loop: For) -> bool:
    return any(isinstance(op, Acquire) and len(op.operands) > 1 for op in loop.regions[0].ops)
