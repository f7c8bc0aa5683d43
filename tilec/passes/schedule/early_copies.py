"""Has what copies by `tma` bring of resident tensors on its way to the L2 cache before a block waits for earlier kernels.

In: a function whose loop fills a ring by copies through tensor maps, behind its wait. Out: the same, with a loop in front of
the wait that asks for the boxes of resident tensors which the first turns copy: as many as the schedule says, or as the ring
has stages. Memory then goes on reading while the kernel before ends, though no shared memory changes before the wait, and the
order of the ring stays what it was. Blocks that take tile after tile have copies for the next tile under way instead.
"""

from __future__ import annotations

from tilec.ir.clone import clone
from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.ops import For, Yield
from tilec.ir.ops_launch import WaitPrior
from tilec.ir.ops_staging import TensorCopy, TensorPrefetch
from tilec.ir.types import TileType, i32
from tilec.passes.schedule.staged_products import Emitter
from tilec.schedule import Schedule


def ask(function: Function, schedule: Schedule) -> Function:
    """Insert what asks early, in place."""
    ops = function.body.ops
    wait = next((place for place, op in enumerate(ops) if isinstance(op, WaitPrior)), None)
    if wait is None:
        return function
    made = Emitter()
    for op in ops[wait:]:
        if isinstance(op, For):
            copies = [one for one in op.regions[0].ops if isinstance(one, TensorCopy) and function.is_resident(one.source)]
            stages = max((one.buffer.shared.stages for one in copies), default=0)
            turns = stages if schedule.early is None else schedule.early
            if copies and turns:
                _ask_for(made, op, copies, turns)
    ops[wait:wait] = made.ops
    return function


def _ask_for(out: Emitter, filling: For, copies: list[TensorCopy], turns: int) -> None:
    """A loop over the first turns of `filling`, of which launch values tell the bounds (`tensor_staging.problem`)."""
    body, asking = filling.regions[0], Block()
    first, last, step = filling.operands[:3]
    end = out.binary("add", first, out.binary("mul", step, out.number(turns)))
    loop = For(
        operands=[first, out.binary("min", last, end), step], regions=[asking], variable=filling.variable, loc=filling.loc
    )
    names = {body.arguments[0]: asking.add_argument(TileType(i32), body.arguments[0].name)}
    needed = _makers(body, {value for copy in copies for value in copy.offsets})
    asking.ops = clone([op for op in body.ops if op in needed], names)
    for copy in copies:
        (rows, columns), panels = copy.buffer.shared.shape, copy.buffer.shared.panels
        place = [copy.source, *(names.get(value, value) for value in copy.offsets)]
        asked = TensorPrefetch(operands=place, rows=rows, columns=columns, panels=panels, row_axis=copy.row_axis, loc=copy.loc)
        asking.ops.append(asked)
    asking.ops.append(Yield())
    out.ops.append(loop)


def _makers(body: Block, values: set[Value]) -> set[Op]:
    """Operations of a body that values follow from."""
    found: set[Op] = set()
    for op in reversed(body.ops):
        if not values.isdisjoint(op.results):
            found.add(op)
            values |= set(op.operands)
    return found
