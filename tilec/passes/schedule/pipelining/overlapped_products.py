"""Intra-warpgroup overlap for back-to-back GEMMs: the second MMA runs while the next iteration computes on the first MMA's
result (Shah et al., FlashAttention-3, 2024, "Intra-warpgroup overlap").

In: the consumer loop of `back_to_back_staging`, before rewriting. Out: in its place

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
from tilec.passes.schedule.pipelining.back_to_back import Chain, Place, Rings, becomes
from tilec.passes.schedule.pipelining.staged_loads import without_dead
from tilec.passes.schedule.pipelining.staged_products import Emitter

OTHER_REGISTERS = 40
"""Registers per thread for addresses, scalars and temporaries in addition to accumulators and operands."""


def fits(chain: Chain, warps: int, registers: int) -> bool:
    """Whether both accumulators and the pending MMA's packed left operand fit in `registers` per thread."""
    rows, columns = chain.first.mma.result.tile.shape
    held = rows * (columns + chain.second.mma.result.tile.shape[1]) + rows * columns // 2
    return held <= (registers - OTHER_REGISTERS) * 32 * warps


def delay(chain: Chain, rings: Rings) -> list[Op]:
    """The operations that replace the loop."""
    loop, summed, out, then = chain.loop, chain.carried, Emitter(), Emitter()
    seen, initial, first = loop.results, list(loop.initial), (rings.zero, rings.zero)
    condition = out.compare("lt", loop.lower, loop.upper)
    begun = _first_iteration(then, chain, rings, first)
    following = tensor_staging.following(then, *first, rings.stages)
    second = then.binary("add", loop.lower, loop.step)
    second.fits = True  # one step after an iteration that runs, for which the loop has an obligation
    loop.operands = [second, *loop.operands[1:3], *begun, *following, *first]
    _rewrite(chain, rings)
    then.ops.append(loop)
    left, total, last = loop.results[len(seen)], loop.results[summed], loop.results[-2:]
    started = rings.start_second(then, chain, left, total, (last[0], last[1]))
    made = rings.finish(then, started, 0, (last[0], last[1]), 2)
    results = loop.results[: len(seen)]
    results[summed] = made
    then.add(Yield(operands=results))
    branch = If(operands=[condition], regions=[Block(ops=without_dead(then.ops)), Block(ops=[Yield(operands=initial)])])
    branch.results = seen
    for value in seen:
        value.owner = branch
    seen[summed].layout = made.layout
    return [*out.ops, branch]


def _first_iteration(out: Emitter, chain: Chain, rings: Rings, place: Place) -> list[Value]:
    """Emit the first iteration; its carried values, followed by its packed left operand for the second MMA."""
    loop, body = chain.loop, chain.loop.regions[0]
    names = dict(zip(body.arguments, [loop.lower, *loop.initial], strict=True))
    for op in body.ops[:-1]:
        if op is chain.first.mma:
            started = rings.start_first(out, chain, names.get(op.operands[2], op.operands[2]), place)
            names[op.result] = rings.finish(out, started, 0, place, 1)
        elif op is not chain.second.mma:
            out.ops += clone([op], names)
    carried = [names.get(value, value) for value in body.ops[-1].operands]
    left, _, total = (names.get(value, value) for value in chain.second.mma.operands)
    left, carried[chain.carried] = rings.pack(out, chain, left), total
    if isinstance(total.owner, Op) and total.owner.elementwise and total.owner in out.ops:
        total.layout = rings.accumulator(total)
    return [*carried, left]


def _rewrite(chain: Chain, rings: Rings) -> None:
    """Rewrite the loop's body and its carried values."""
    loop, body, summed = chain.loop, chain.loop.regions[0], chain.carried
    second, closing = chain.second.mma, body.ops[-1]
    rows, depth = second.operands[0].tile.shape
    left = body.add_argument(TileType(i32, (rows, depth // 2)), "left")
    first_place = body.add_argument(TileType(i32), "stage"), body.add_argument(TileType(i32), "parity")
    second_place = body.add_argument(TileType(i32), "stage_before"), body.add_argument(TileType(i32), "parity_before")
    argument = body.arguments[1 + summed]
    ahead, late = chain.split()
    position = ahead.index(chain.first.mma)
    out = Emitter(ahead[:position])
    started = rings.start_first(out, chain, chain.first.mma.operands[2], first_place)
    before = rings.start_second(out, chain, left, argument, second_place)
    becomes(rings.finish(out, started, 1, first_place, 1), chain.first.mma.result)
    out.ops += ahead[position + 1 :]
    done = rings.finish(out, before, 0, second_place, 2, _last(ahead, closing))
    following = rings.pack(out, chain, second.operands[0])
    for op in late:
        for inner in Block(ops=[op]).walk():
            inner.operands = [done if value is argument else value for value in inner.operands]
        out.ops.append(op)
    closing.operands[summed] = second.operands[2]
    closing.operands = [done if value is argument else value for value in closing.operands]
    place = tensor_staging.following(out, *first_place, rings.stages)
    closing.operands += [following, *place, *first_place]
    body.ops = without_dead([*out.ops, closing])
    layout = rings.accumulator(argument)
    argument.layout, left.layout = layout, packed_operand(layout, depth)
    names = [*(value.name for value in loop.results), "left", "stage", "parity", "stage_before", "parity_before"]
    types = [value.type for value in body.arguments[1:]]
    loop.results = [Value(type_, name, loop) for type_, name in zip(types, names, strict=True)]
    for result, carried in zip(loop.results, body.arguments[1:], strict=True):
        result.layout = carried.layout


def _last(ops: list[Op], closing: Op) -> Value | None:
    """The f32 tile that the body computes last among those that it yields."""
    made = [result for op in ops for result in op.results if result in closing.operands]
    return next((value for value in reversed(made) if value.tile.rank and value.tile.dtype == f32), None)
