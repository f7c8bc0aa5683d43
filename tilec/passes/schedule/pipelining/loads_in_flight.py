"""Loads of iterations to come, in loops that wait for memory in each: of few bytes for a thread, as in a recurrence over rows.

In: a function with layouts, without products. Out: instead of a loop whose threads load few bytes in an iteration

    if there is an iteration:
        loads of the first `ahead` iterations
        for each group of `ahead` iterations:
            each of them, as before, on the values that were loaded for it; then the load for the one `ahead` later
        for each iteration that is left: as before, on the values that were loaded for it

where the loops carry what was loaded. A multiprocessor of an H200 has its share of the memory's rate only while some 25 KB of
loads are on the way (rate times latency), and the threads of one block, which may be the only one, wait for each load: with 4
bytes a thread, a loop of rows takes a latency a row. LLVM moves no load across iterations. Moving a carried register waits
for its load, so iterations of a group stand one after the other, each with registers of its own for what it loads: a
recurrence over 65,536 rows takes 4.3 ms on an H200, 15.0 with a loop that moves its registers, and 42.9 as written. An
iteration that needs more than instructions, or many, is not copied: its loop moves what it carries.

With `shared_out`, loops whose iterations blocks share out may load more: 67 MB of f32 that 264 blocks of two warps add up take
23 us where they took 39.

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
from tilec.ir.ops import BlockId, Broadcast, Constant, For, If, Load, Mma, Store, Yield
from tilec.ir.ops.staging_ops import GroupProduct, StageCopy
from tilec.ir.types import TileType, i32
from tilec.passes.analysis.ranges import Range, value_ranges
from tilec.passes.analysis.trips import has_constant_bounds, trips
from tilec.passes.schedule import register_need
from tilec.passes.schedule.pipelining.staged_products import Emitter
from tilec.passes.schedule.simplify.invariant_loads import computation

MOST_BYTES: Final = 8
"""Bytes that a thread loads in an iteration at most: with more, other warps of a multiprocessor hide the latency."""
MOST_BYTES_SHARED_OUT: Final = 64
"""The same of loops whose iterations blocks share out, of which there are about as many as a chip runs at a time: the author
chose so few that other warps hide little."""
BYTES_AHEAD: Final = 128
"""Bytes of a thread on the way: as many as its registers have room for in addition to others."""
BYTES_AHEAD_SHARED_OUT: Final = 192
MOST_AHEAD: Final = 32
UNROLLED_BY_LLVM: Final = 16
"""Iterations of a loop of constant bounds that need no loads ahead: all of them are."""
MOST_OPERATIONS: Final = 1024
"""Operations of a group of iterations: each is some instructions, of which a multiprocessor's cache has room for thousands."""
LEAST_UNROLLED: Final = 3
"""Iterations of a group: with fewer, the wait of a move is as long."""
MOST_REGISTERS: Final = 96
"""Registers for tiles from which a kernel keeps its loops: more would cost it warps."""


def load(function: Function, shared_out: bool = False) -> Function:
    """Rewrite such loops, in place; with `shared_out` also loops of more bytes whose iterations blocks share out."""
    ops = list(function.body.walk())
    if not any(isinstance(op, For) for op in ops) or any(isinstance(op, Mma | GroupProduct | StageCopy) for op in ops):
        return function
    if register_need.registers(function) <= MOST_REGISTERS:
        _block(function, function.body, value_ranges(function), shared_out)
    return function


def _block(function: Function, block: Block, facts: Mapping[Value, Range], shared_out: bool) -> None:
    ops: list[Op] = []
    for op in block.ops:
        for region in op.regions:
            _block(function, region, facts, shared_out)
        loads = _loads(function, op, shared_out) if isinstance(op, For) and facts[op.lower].low >= 0 else []
        ops += _in_flight(op, loads) if isinstance(op, For) and loads else [op]
    block.ops = ops


def _loads(function: Function, loop: For, shared_out: bool) -> list[Load]:
    """The loads of an iteration, if all may move and are of few bytes for a thread; none of a loop of few iterations, which
    LLVM unrolls, or with others inside."""
    body = loop.regions[0]
    found = [op for op in body.ops if isinstance(op, Load)]
    sizes = [_bytes(op) for op in found if op.result.tile.rank]
    most = MOST_BYTES_SHARED_OUT if shared_out and _is_shared_out(loop) else MOST_BYTES
    if any(op.regions for op in body.ops) or not 0 < sum(sizes) <= most or not all(sizes):
        return []
    if has_constant_bounds(loop) and trips(loop) <= UNROLLED_BY_LLVM:
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


def _is_shared_out(loop: For) -> bool:
    """Whether the blocks of a grid share the iterations out: each begins at its own number."""
    return isinstance(loop.lower.owner, BlockId)


def _bytes(op: Load) -> int:
    layout = op.result.layout
    return layout.num_registers * op.result.tile.dtype.bytes if layout is not None else 0


def _in_flight(loop: For, loads: list[Load]) -> list[Op]:
    """The operations that replace a loop."""
    body, kept = loop.regions[0], loop.results
    window = _Window(loop, loads)
    out, then = Emitter(), Emitter()
    position, values = loop.lower, list[list[Value]]()
    for number in range(window.ahead):
        position = _following(then, loop, position) if number else position
        values.append(window.load(then, position))
    flat = [value for one in values for value in one]
    groups = _groups(then, loop, window.each)
    state = window.groups(then, groups, flat, position)
    if window.each > 1:
        state = window.last(then, state)
    then.add(Yield(operands=state[: len(kept)]))
    condition = out.compare("lt", loop.lower, loop.upper)
    branch = If(operands=[condition], regions=[Block(ops=then.ops), Block(ops=[Yield(operands=loop.initial)])])
    branch.results = kept
    for value in kept:
        value.owner = branch
    body.ops = []
    return [*out.ops, branch]


class _Window:
    """The loads of a loop's next `ahead` iterations, of which `each` are run at a time. Values are in the order of iterations,
    those of an iteration in that of its loads."""

    def __init__(self, loop: For, loads: list[Load]) -> None:
        body = loop.regions[0]
        inside: dict[Value, Op | None] = {result: op for op in body.ops for result in op.results}
        inside |= dict.fromkeys(body.arguments[1:], None)
        needed: set[Op] = {*loads}
        for op in loads:
            needed |= computation(op.operands[1:], inside) or set()
        self.loop, self.loads, self.body = loop, loads, body
        self.moved = [op for op in body.ops if op in needed]
        self.rest = [op for op in body.ops[:-1] if op not in loads]
        self.ahead = _ahead(body, loads)
        self.each = self.ahead if _unrolls(body) else 1

    def load(self, out: Emitter, position: Value) -> list[Value]:
        """Emit the loads of the iteration at `position`; what they load."""
        names = {self.body.arguments[0]: position}
        out.ops += clone(self.moved, names)
        return [names[op.result] for op in self.loads]

    def iteration(self, out: Emitter, variable: Value, state: list[Value], loaded: list[Value]) -> list[Value]:
        """Emit an iteration on what was loaded for it; the values that the loop carries from it."""
        names = dict(zip(self.body.arguments, [variable, *state], strict=True))
        names |= dict(zip((op.result for op in self.loads), loaded, strict=True))
        out.ops += clone(self.rest, names)
        return [names.get(value, value) for value in self.body.ops[-1].operands]

    def groups(self, out: Emitter, number: Value, values: list[Value], position: Value) -> list[Value]:
        """Emit the loop of whole groups; what it leaves: the state, what is loaded for iterations to come, and their first
        position."""
        initial = self.loop.initial
        zero, one = out.number(0), out.number(1)
        carried = [*initial, *values, position, self.loop.lower]
        loop, arguments = _loop("group", [zero, number, one], carried)
        inner, step = Emitter(), len(self.loads)
        state, window = arguments[: len(initial)], arguments[len(initial) : -2]
        last, variable = arguments[-2:]
        for _ in range(self.each):
            state = self.iteration(inner, variable, state, window[:step])
            last = _following(inner, self.loop, last)
            window = [*window[step:], *self.load(inner, last)]
            variable = _stepped(inner, self.loop, variable)
        inner.add(Yield(operands=[*state, *window, last, variable]))
        loop.regions[0].ops = inner.ops
        out.ops.append(loop)
        return [*loop.results[:-2], loop.results[-1]]

    def last(self, out: Emitter, carried: list[Value]) -> list[Value]:
        """Emit the loop of the iterations that are no whole group, for which everything is loaded."""
        bounds, step = [carried[-1], self.loop.upper, self.loop.step], len(self.loads)
        loop, arguments = _loop(self.loop.variable, bounds, carried[:-1])
        inner, kept = Emitter(), len(self.loop.initial)
        state, window = arguments[:kept], arguments[kept:]
        state = self.iteration(inner, loop.regions[0].arguments[0], state, window[:step])
        inner.add(Yield(operands=[*state, *window[step:], *window[:step]]))
        loop.regions[0].ops = inner.ops
        out.ops.append(loop)
        return loop.results


def _loop(variable: str, bounds: list[Value], carried: list[Value]) -> tuple[For, list[Value]]:
    """A loop without operations yet, and its carried values, which have the layouts of the first ones."""
    body = Block()
    body.add_argument(TileType(i32), variable)
    arguments = [body.add_argument(value.tile, value.name) for value in carried]
    loop = For(operands=[*bounds, *carried], regions=[body], variable=variable)
    loop.results = [Value(value.type, value.name, loop, value.layout) for value in carried]
    for argument, value in zip(arguments, carried, strict=True):
        argument.layout = value.layout
    return loop, arguments


def _ahead(body: Block, loads: list[Load]) -> int:
    """Iterations whose loads are on the way."""
    size = sum(_bytes(op) for op in loads)
    ahead = min(MOST_AHEAD, (BYTES_AHEAD if size <= MOST_BYTES else BYTES_AHEAD_SHARED_OUT) // max(1, size))
    return max(1, min(ahead, MOST_OPERATIONS // len(body.ops))) if _unrolls(body) else ahead


def _unrolls(body: Block) -> bool:
    """Whether copies of an iteration need no more than instructions: no scratch, and few of them."""
    return len(body.ops) <= MOST_OPERATIONS // LEAST_UNROLLED and all(
        op.elementwise or isinstance(op, Load | Store | Constant | Broadcast | Yield) for op in body.ops
    )


def _groups(out: Emitter, loop: For, each: int) -> Value:
    """How many times `each` iterations of the loop there are, of which there is at least one. The lower bound is no less than
    0, so that the distance to the upper one fits."""
    distance = _fitting(out.binary("sub", loop.upper, loop.lower))
    further = _fitting(out.binary("floordiv", _fitting(out.binary("sub", distance, out.number(1))), loop.step))
    iterations = _fitting(out.binary("add", further, out.number(1)))
    return _fitting(out.binary("floordiv", iterations, out.number(each))) if each > 1 else iterations


def _stepped(out: Emitter, loop: For, position: Value) -> Value:
    """One step after an iteration that runs, which fits: the loop has an obligation for it."""
    return _fitting(out.binary("add", position, loop.step))


def _fitting(value: Value) -> Value:
    value.fits = True
    return value


def _following(out: Emitter, loop: For, position: Value) -> Value:
    """The position a step later, or the same if it is the last. It is no less than 0 and below the upper bound, so that neither
    the distance to that nor the position wraps."""
    distance = _fitting(out.binary("sub", loop.upper, position))
    return out.select(out.compare("gt", distance, loop.step), _stepped(out, loop, position), position)
