"""Loads of iterations to come, in loops that wait for memory in each: of few bytes for a thread, as in a recurrence over rows.

In: a function with layouts, without products. Out: instead of a loop whose threads load few bytes in an iteration

    if there is an iteration:
        loads of the first `ahead` iterations
        for each iteration: load for the one `ahead` later; as before, on the values that were loaded for this one

where the loop carries what was loaded. A multiprocessor of an H200 has its share of the memory's rate only while some 25 KB of
loads are on the way (rate times latency), and the threads of one block, which may be the only one, wait for each load: with 4
bytes a thread, a loop of rows takes a latency a row. LLVM moves no load across iterations. Moving a carried register waits
for its load, so that an iteration still waits for a part of a latency: a recurrence over 65,536 rows takes 15.0 ms on an H200
where it took 42.9.

Past the last iteration the loads repeat those of the last, so that no access is made that the loop did not make: the position
moves on only while a step remains below the upper bound. Loads move as far as their offsets follow from the loop variable and
values outside of the loop, of tensors that no kernel in flight writes. Loops stay unchanged if the variable may be negative,
since the distance to the upper bound may then not fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tilec.ir.clone import clone
from tilec.ir.core import Access, Block, Function, Op, Value
from tilec.ir.ops import For, If, Load, Mma, Yield
from tilec.ir.ops.staging_ops import GroupProduct, StageCopy
from tilec.ir.types import TileType, i32
from tilec.passes.analysis.ranges import Range, value_ranges
from tilec.passes.analysis.trips import has_constant_bounds, trips
from tilec.passes.schedule import register_need
from tilec.passes.schedule.pipelining.staged_products import Emitter
from tilec.passes.schedule.simplify.invariant_loads import computation

MOST_BYTES: Final = 8
"""Bytes that a thread loads in an iteration at most: with more, other warps of a multiprocessor hide the latency."""
BYTES_AHEAD: Final = 64
"""Bytes of a thread on the way: as many as its registers have room for in addition to others."""
MOST_AHEAD: Final = 16
MOST_REGISTERS: Final = 96
"""Registers for tiles from which a kernel keeps its loops: more would cost it warps."""


def load(function: Function) -> Function:
    """Rewrite such loops, in place."""
    ops = list(function.body.walk())
    if not any(isinstance(op, For) for op in ops) or any(isinstance(op, Mma | GroupProduct | StageCopy) for op in ops):
        return function
    if register_need.registers(function) <= MOST_REGISTERS:
        _block(function, function.body, value_ranges(function))
    return function


def _block(function: Function, block: Block, facts: Mapping[Value, Range]) -> None:
    ops: list[Op] = []
    for op in block.ops:
        for region in op.regions:
            _block(function, region, facts)
        loads = _loads(function, op) if isinstance(op, For) and facts[op.lower].low >= 0 else []
        ops += _in_flight(op, loads) if isinstance(op, For) and loads else [op]
    block.ops = ops


def _loads(function: Function, loop: For) -> list[Load]:
    """The loads of an iteration, if all may move and are of few bytes for a thread; none of a loop of few iterations, which
    LLVM unrolls, or with others inside."""
    body = loop.regions[0]
    found = [op for op in body.ops if isinstance(op, Load)]
    sizes = [_bytes(op) for op in found if op.result.tile.rank]
    if any(op.regions for op in body.ops) or not 0 < sum(sizes) <= MOST_BYTES or not all(sizes):
        return []
    if has_constant_bounds(loop) and trips(loop) <= MOST_AHEAD:
        return []
    inside: dict[Value, Op | None] = {result: op for op in body.ops for result in op.results}
    inside |= dict.fromkeys(body.arguments[1:], None)
    movable = all(
        op.unsafe is None
        and function.parameter_of(op.source).access is Access.IN
        and computation(op.operands[1:], inside) is not None
        for op in found
    )
    return found if movable else []


def _bytes(op: Load) -> int:
    layout = op.result.layout
    return layout.num_registers * op.result.tile.dtype.bytes if layout is not None else 0


def _in_flight(loop: For, loads: list[Load]) -> list[Op]:
    """The operations that replace a loop."""
    body, kept = loop.regions[0], loop.results
    inside: dict[Value, Op | None] = {result: op for op in body.ops for result in op.results}
    inside |= dict.fromkeys(body.arguments, None)
    inside.pop(body.arguments[0])
    needed: set[Op] = {*loads}
    for op in loads:
        needed |= computation(op.operands[1:], inside) or set()
    moved = [op for op in body.ops if op in needed]
    ahead = min(MOST_AHEAD, BYTES_AHEAD // max(1, sum(_bytes(op) for op in loads)))

    out, then, head = Emitter(), Emitter(), Emitter()
    position, windows = loop.lower, [list[Value]() for _ in loads]
    for number in range(ahead):
        position = _following(then, loop, position) if number else position
        _load_at(then, moved, loads, body.arguments[0], position, windows)
    carried = [[body.add_argument(op.result.tile, op.result.name) for _ in range(ahead)] for op in loads]
    last = body.add_argument(TileType(i32), "loaded")
    following = _following(head, loop, last)
    fresh = [list[Value]() for _ in loads]
    _load_at(head, moved, loads, body.arguments[0], following, fresh)
    for op, arguments in zip(loads, carried, strict=True):
        for argument in arguments:
            argument.layout = op.result.layout
    rest = [op for op in body.ops if op not in loads]
    taken = {op.result: arguments[0] for op, arguments in zip(loads, carried, strict=True)}
    for op in rest:
        op.operands = [taken.get(value, value) for value in op.operands]
    for arguments, (new,) in zip(carried, fresh, strict=True):
        rest[-1].operands += [*arguments[1:], new]
    rest[-1].operands.append(following)
    body.ops = [*head.ops, *rest]
    loop.operands += [*(value for window in windows for value in window), position]
    initial = loop.initial[: len(kept)]
    loop.results = [Value(value.type, value.name, loop, value.layout) for value in (*kept, *loop.initial[len(kept) :])]
    then.ops.append(loop)
    then.add(Yield(operands=loop.results[: len(kept)]))
    condition = out.compare("lt", loop.lower, loop.upper)
    branch = If(operands=[condition], regions=[Block(ops=then.ops), Block(ops=[Yield(operands=initial)])])
    branch.results = kept
    for value in kept:
        value.owner = branch
    return [*out.ops, branch]


def _following(out: Emitter, loop: For, position: Value) -> Value:
    """The position a step later, or the same if it is the last. It is no less than 0 and below the upper bound, so that neither
    the distance to that nor the position wraps."""
    distance = out.binary("sub", loop.upper, position)
    distance.fits = True
    stepped = out.binary("add", position, loop.step)
    stepped.fits = True
    return out.select(out.compare("gt", distance, loop.step), stepped, position)


def _load_at(
    out: Emitter, moved: list[Op], loads: list[Load], variable: Value, position: Value, into: list[list[Value]]
) -> None:
    """Emit the loads of the iteration at `position`, and add what they load to `into`."""
    names = {variable: position}
    out.ops += clone(moved, names)
    for op, values in zip(loads, into, strict=True):
        values.append(names[op.result])
