"""Warp specialization: splits a kernel into consumer roles and the helper roles of its family, such as a producer.

In: a function prepared for the consumer warps alone, in which some operations do a helper's work, such as filling mbarrier
rings (`tensor_staging`, `back_to_back_staging`), in loops of their own. Out: the same with a `roles` operation. Operations that
all threads need and each can execute stay before it: launch values, and the rings with the barrier that publishes their
mbarriers. All later barriers synchronize one role. The grid dependency wait also stays before it, unless prologue loads precede
the wait (`prologue_stages`); then each role waits by itself. In a persistent kernel each role has its own tile loop, which
carries the role's ring position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from tilec.ir.clone import clone
from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.layouts.layout import Digit
from tilec.ir.ops import For, Load, Reshape, Yield
from tilec.ir.ops.launch_ops import DependencyWait
from tilec.ir.ops.sync_ops import Barrier, Ring, Roles
from tilec.ir.ops.tmem_ops import TmemAlloc, TmemFree
from tilec.passes.schedule.launch_overlap.dependency_wait import launch_values
from tilec.passes.schedule.pipelining import tensor_staging, tmem_staging
from tilec.passes.schedule.specialization import pingpong
from tilec.passes.schedule.specialization.persistent import tile_loop
from tilec.target.families import Work
from tilec.target.schedule import Schedule

WORK: Final[Mapping[Work, Callable[[Op], bool]]] = {Work.COPY: tensor_staging.copies, Work.MULTIPLY: tmem_staging.multiplies}
"""Which operations each kind of helper executes."""


def split(function: Function, schedule: Schedule) -> Function:
    """Split into the schedule's roles, in place; a kernel with one role stays unchanged."""
    if len(schedule.roles) == 1:
        return function
    body, tiles = function.body, tile_loop(function)
    helpers = [role.helper for role in schedule.roles if role.helper is not None]
    tile_ops = (body if tiles is None else tiles.regions[0]).ops
    helper_ops = [[op for op in tile_ops if _does(op, helper.work)] for helper in helpers]
    ring = next(i for i, op in enumerate(body.ops) if isinstance(op, Ring))
    barrier = next(i for i, op in enumerate(body.ops) if i > ring and isinstance(op, Barrier))
    setup = body.ops[ring : barrier + 1]
    launch_scalars = launch_values(function)
    wait = next((op for op in body.ops if isinstance(op, DependencyWait)), None)
    helped = {op for ops in helper_ops for op in ops}
    loaded = set[Op]() if tiles is not None else _needed(body, list(helped), [])  # elements, of which a helper's loop depends
    waits_per_role = wait is not None and any(op in helped for op in body.ops[: body.ops.index(wait)])

    def is_shared(op: Op) -> bool:
        is_setup = op in setup or isinstance(op, TmemAlloc)
        is_known = op in loaded or bool(op.results and set(op.results) <= launch_scalars)
        return (op is wait and not waits_per_role) or is_setup or is_known

    shared_ops = [op for op in body.ops if is_shared(op)]
    last_ops = [op for op in body.ops if isinstance(op, TmemFree) or (_is_of_cluster(op) and op not in setup)]
    consumer_block = Block(ops=[op for op in body.ops if op not in helped and op not in last_ops and not is_shared(op)])
    helper_blocks = [_helper_block(body, tiles, ops, wait if waits_per_role else None) for ops in helper_ops]
    for op in consumer_block.walk():
        if isinstance(op, Barrier):
            op.scope = "role"
    roles, consumer_roles = schedule.roles, schedule.consumer_roles
    consumer_blocks = pingpong.consumers(consumer_block, consumer_roles) if consumer_roles > 1 else [consumer_block]
    roles_op = Roles(
        names=tuple(role.name for role in roles),
        warps=tuple(role.warps for role in roles),
        registers=tuple(role.registers or 0 for role in roles),
        alone=tuple(role.is_single_thread for role in roles),
        regions=[*consumer_blocks, *helper_blocks],
    )
    body.ops = [*shared_ops, roles_op, *last_ops]
    function.num_warps = schedule.warps
    _spread(loaded, schedule.warps)
    for block, helper in zip(helper_blocks, (role for role in roles if role.helper is not None), strict=True):
        _spread((op for op in block.walk() if isinstance(op, Load | Reshape)), helper.warps)
    return function


def _spread(ops: Iterable[Op], warps: int) -> None:
    """Give elements that all threads of `warps` warps load to each of them."""
    for op in ops:
        for value in op.results:
            if value.layout is not None and value.tile.size == 1:
                value.layout = replace(value.layout, warps=(Digit(warps),))


def _is_of_cluster(op: Op) -> bool:
    return isinstance(op, Barrier) and op.scope == "cluster"


def _does(op: Op, work: Work) -> bool:
    """Whether an operation, or one inside of it, is work of that kind."""
    return any(WORK[work](inner) for inner in Block(ops=[op]).walk())


def _helper_block(body: Block, tiles: For | None, ops: list[Op], wait: DependencyWait | None) -> Block:
    """A helper's region: its operations, each loop in a loop over the tiles if there is one. `wait`: the grid dependency wait
    that each role executes by itself."""
    if tiles is not None:
        return Block(ops=[_extract_loop(tiles, ops)] if any(isinstance(op, For) for op in ops) else [])
    if wait is None:
        return Block(ops=ops)
    own_wait = replace(wait, operands=[], results=[])
    return Block(ops=[own_wait if op is wait else op for op in body.ops if op is wait or op in ops])


def _extract_loop(tiles: For, ops: list[Op]) -> For:
    """A helper's loop over the same tiles: its operations `ops`, the values of the tile loop that it carries, and what all
    those depend on. They are removed from `tiles`."""
    body, last = tiles.regions[0], tiles.regions[0].ops[-1]
    used = {value for op in Block(ops=ops).walk() for value in op.operands}
    carried = [i for i, value in enumerate(body.arguments) if i and value in used]
    following = [last.operands[i - 1] for i in carried]
    needed = _needed(body, ops, following)
    inside = Block()
    names = {body.arguments[0]: inside.add_argument(body.arguments[0].tile, body.arguments[0].name)}
    names |= {body.arguments[i]: inside.add_argument(body.arguments[i].tile, body.arguments[i].name) for i in carried}
    inside.ops = clone([op for op in body.ops if op in needed or op in ops], names)
    inside.ops.append(Yield(operands=[names.get(value, value) for value in following]))
    initial = [tiles.operands[2 + i] for i in carried]
    helping = For(operands=[*tiles.operands[:3], *initial], regions=[inside], variable=tiles.variable, loc=tiles.loc)
    helping.define(*(tiles.results[i - 1].type for i in carried), names=tuple(tiles.results[i - 1].name for i in carried))
    removed = {body.arguments[i] for i in carried}
    for i in sorted(carried, reverse=True):  # the first argument is the loop variable, which is not a carried value
        del body.arguments[i], tiles.operands[2 + i], tiles.results[i - 1], last.operands[i - 1]
    kept: list[Op] = []
    for op in body.ops:
        if op in ops or not removed.isdisjoint(op.operands):
            removed.update(op.results)  # the next value of what is no longer carried
        else:
            kept.append(op)
    body.ops = _without_unused(kept, needed)
    return helping


def _without_unused(ops: list[Op], copied: set[Op]) -> list[Op]:
    """The operations without those of `copied`, which the helper has too, whose results no operation is left to use."""
    kept: list[Op] = []
    used: set[Value] = set()
    for op in reversed(ops):
        if op in copied and used.isdisjoint(op.results):
            continue
        kept.append(op)
        used.update(value for inner in Block(ops=[op]).walk() for value in inner.operands)
    return kept[::-1]


def _needed(body: Block, ops: list[Op], values: list[Value]) -> set[Op]:
    """Operations of `body`, other than `ops`, that these and the values depend on."""
    makers = {result: op for op in body.ops for result in op.results}
    pending = [*values, *(value for op in Block(ops=ops).walk() for value in op.operands)]
    found: set[Op] = set()
    while pending:
        op = makers.get(pending.pop())
        if op is not None and op not in ops and op not in found:
            found.add(op)
            pending += op.operands
    return found
