"""Intra-warpgroup overlap for back-to-back GEMMs: the second MMA runs while the next iteration computes on the first MMA's
result (Shah et al., FlashAttention-3, 2024, "Intra-warpgroup overlap").

In: the consumer loop of `back_to_back_staging`, before rewriting. Out: instead of it

    if there is an iteration:
        first iteration: wait; MMA 1; wait for it, release its stage; compute on its result
        for each other iteration:
            wait; start MMA 1; wait; start MMA 2 of the previous iteration
            wait for MMA 1, release its stage; compute on its result all that does not depend on the accumulator of MMA 2
            wait for MMA 2, release its stage; then pack the next left operand, which reuses the registers of the last one
            compute all that depends on the accumulator: the input accumulator of this iteration's MMA 2
        wait; start the last MMA 2; wait for it, release its stage

Instead of the finished accumulator, the loop carries the packed left operand and the input accumulator of the pending MMA 2.
"""

from __future__ import annotations

from tilec.ir.clone import clone
from tilec.ir.core import Block, Op, Value
from tilec.ir.layouts.operand_layouts import packed_operand
from tilec.ir.ops import If, Yield
from tilec.ir.types import TileType, f32, i32
from tilec.passes.schedule.pipelining import tensor_staging
from tilec.passes.schedule.pipelining.back_to_back import BackToBack, RingPosition, Rings, becomes
from tilec.passes.schedule.pipelining.staged_loads import without_dead
from tilec.passes.schedule.pipelining.staged_products import Emitter

OTHER_REGISTERS = 40
"""Registers per thread for addresses, scalars and temporaries in addition to accumulators and operands."""


def fits(pair: BackToBack, warps: int, registers: int) -> bool:
    """Whether both accumulators and the pending MMA's packed left operand fit in `registers` per thread."""
    rows, columns = pair.first.mma.result.tile.shape
    register_elements = rows * (columns + pair.second.mma.result.tile.shape[1]) + rows * columns // 2
    return register_elements <= (registers - OTHER_REGISTERS) * 32 * warps


def overlap(pair: BackToBack, rings: Rings) -> list[Op]:
    """The operations that replace the loop."""
    loop, accumulator, out, then = pair.loop, pair.carried, Emitter(), Emitter()
    results, initial, first = loop.results, list(loop.initial), (rings.zero, rings.zero)
    condition = out.compare("lt", loop.lower, loop.upper)
    first_values = _first_iteration(then, pair, rings, first)
    following = tensor_staging.following(then, *first, rings.stages)
    second = then.binary("add", loop.lower, loop.step)
    second.fits = True  # one step after an iteration that runs, for which the loop has an obligation
    loop.operands = [second, *loop.operands[1:3], *first_values, *following, *first]
    _rewrite(pair, rings)
    then.ops.append(loop)
    left, total, last = loop.results[len(results)], loop.results[accumulator], loop.results[-2:]
    started = rings.start_second(then, pair, left, total, (last[0], last[1]))
    finished = rings.finish(then, started, 0, (last[0], last[1]), 2)
    final_values = loop.results[: len(results)]
    final_values[accumulator] = finished
    then.add(Yield(operands=final_values))
    branch = If(operands=[condition], regions=[Block(ops=without_dead(then.ops)), Block(ops=[Yield(operands=initial)])])
    branch.results = results
    for value in results:
        value.owner = branch
    results[accumulator].layout = finished.layout
    return [*out.ops, branch]


def _first_iteration(out: Emitter, pair: BackToBack, rings: Rings, ring_position: RingPosition) -> list[Value]:
    """Emit the first iteration; its carried values, followed by its packed left operand for the second MMA."""
    loop, body = pair.loop, pair.loop.regions[0]
    mapping = dict(zip(body.arguments, [loop.lower, *loop.initial], strict=True))
    for op in body.ops[:-1]:
        if op is pair.first.mma:
            started = rings.start_first(out, pair, mapping.get(op.operands[2], op.operands[2]), ring_position)
            mapping[op.result] = rings.finish(out, started, 0, ring_position, 1)
        elif op is not pair.second.mma:
            out.ops += clone([op], mapping)
    carried = [mapping.get(value, value) for value in body.ops[-1].operands]
    left, _, total = (mapping.get(value, value) for value in pair.second.mma.operands)
    left, carried[pair.carried] = rings.pack(out, pair, left), total
    if isinstance(total.owner, Op) and total.owner.elementwise and total.owner in out.ops:
        total.layout = rings.accumulator(total)
    return [*carried, left]


def _rewrite(pair: BackToBack, rings: Rings) -> None:
    """Rewrite the loop's body and its carried values."""
    loop, body, accumulator = pair.loop, pair.loop.regions[0], pair.carried
    second, yield_op = pair.second.mma, body.ops[-1]
    rows, depth = second.operands[0].tile.shape
    left = body.add_argument(TileType(i32, (rows, depth // 2)), "left")
    first_position = body.add_argument(TileType(i32), "stage"), body.add_argument(TileType(i32), "parity")
    second_position = body.add_argument(TileType(i32), "stage_before"), body.add_argument(TileType(i32), "parity_before")
    argument = body.arguments[1 + accumulator]
    independent_ops, dependent_ops = pair.split()
    first_index = independent_ops.index(pair.first.mma)
    out = Emitter(independent_ops[:first_index])
    started = rings.start_first(out, pair, pair.first.mma.operands[2], first_position)
    started_second = rings.start_second(out, pair, left, argument, second_position)
    becomes(rings.finish(out, started, 1, first_position, 1), pair.first.mma.result)
    out.ops += independent_ops[first_index + 1 :]
    finished = rings.finish(out, started_second, 0, second_position, 2, _last_f32_tile(independent_ops, yield_op))
    next_left = rings.pack(out, pair, second.operands[0])
    for op in dependent_ops:
        for inner in Block(ops=[op]).walk():
            inner.operands = [finished if value is argument else value for value in inner.operands]
        out.ops.append(op)
    yield_op.operands[accumulator] = second.operands[2]
    yield_op.operands = [finished if value is argument else value for value in yield_op.operands]
    next_position = tensor_staging.following(out, *first_position, rings.stages)
    yield_op.operands += [next_left, *next_position, *first_position]
    body.ops = without_dead([*out.ops, yield_op])
    layout = rings.accumulator(argument)
    argument.layout, left.layout = layout, packed_operand(layout, depth)
    names = [*(value.name for value in loop.results), "left", "stage", "parity", "stage_before", "parity_before"]
    types = [value.type for value in body.arguments[1:]]
    loop.results = [Value(type_, name, loop) for type_, name in zip(types, names, strict=True)]
    for result, carried in zip(loop.results, body.arguments[1:], strict=True):
        result.layout = carried.layout


def _last_f32_tile(ops: list[Op], yield_op: Op) -> Value | None:
    """The f32 tile that the body computes last among those that it yields."""
    yielded = [result for op in ops for result in op.results if result in yield_op.operands]
    return next((value for value in reversed(yielded) if value.tile.rank and value.tile.dtype == f32), None)
