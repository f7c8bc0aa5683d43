"""Loops and branches. Loops with a known number of turns are unrolled, so that loads of several turns overlap."""

from __future__ import annotations

from tilec.ir.core import Block, Value
from tilec.ir.ops import Constant, For, If
from tilec.ir.ops_staging import AsyncCopy, SharedLoad
from tilec.lowering.context import Context, storage
from tilec.lowering.convert import registers_in
from tilec.lowering.rules import Lower
from tilec.lowering.tensor_core import arith, number

MAX_UNROLL = 8


def lower_for(context: Context, op: For, lower: Lower) -> None:
    """An scf loop over the registers of all carried values."""
    body = op.regions[0]
    carried = body.arguments[1:]
    start = [_as(context, initial, argument) for initial, argument in zip(op.initial, carried, strict=True)]
    factor, step, rest = _unroll(op)
    types = [storage(argument.tile.dtype) for argument, names in zip(carried, start, strict=True) for _ in names]
    variable, result = context.name(), context.name()
    inside = [[context.name() for _ in names] for names in start]
    pairs = ", ".join(
        f"{name} = {first}"
        for names, firsts in zip(inside, start, strict=True)
        for name, first in zip(names, firsts, strict=True)
    )
    stride = context.scalar(op.step) if factor == 1 else number(context, step * factor)
    upper = context.scalar(op.upper) if not rest else number(context, rest[0])
    head = f"{result}:{len(types)} = " if types else ""
    iteration = f" iter_args({pairs}) -> ({', '.join(types)})" if types else ""
    bounds = f"{context.scalar(op.lower)} to {upper} step {stride}"
    context.effect(f"{head}scf.for {variable} = {bounds}{iteration} : i32 {{")
    for turn in range(factor):
        index = arith(context, "add", variable, turn * step) if turn else variable
        inside = _turn(context, body, index, inside, lower)
    if types:
        context.effect(f"scf.yield {', '.join(name for names in inside for name in names)} : {', '.join(types)}")
    context.effect("}")
    position = 0
    after: list[list[str]] = []
    for names in start:
        after.append([f"{result}#{position + i}" if len(types) > 1 else result for i in range(len(names))])
        position += len(names)
    for index in rest:
        after = _turn(context, body, number(context, index), after, lower)
    for value, names in zip(op.results, after, strict=True):
        context.assign(value, names)


def _turn(context: Context, body: Block, index: str, held: list[list[str]], lower: Lower) -> list[list[str]]:
    """One turn of a loop's body; the carried values after it."""
    carried = body.arguments[1:]
    context.assign(body.arguments[0], [index])
    for argument, names in zip(carried, held, strict=True):
        context.assign(argument, names)
    lower(body.ops[:-1])
    return [_as(context, value, argument) for value, argument in zip(body.ops[-1].operands, carried, strict=True)]


def lower_if(context: Context, op: If, lower: Lower) -> None:
    """An scf branch over the registers of all results."""
    counts = [value.layout.num_registers if value.layout else 1 for value in op.results]
    types = [storage(v.tile.dtype) for v, count in zip(op.results, counts, strict=True) for _ in range(count)]
    result = context.name()
    head = f"{result}:{len(types)} = " if types else ""
    context.effect(f"{head}scf.if {context.scalar(op.operands[0])}{f' -> ({chr(44).join(types)})' if types else ''} {{")
    for position, region in enumerate(op.regions):
        if position:
            context.effect("} else {")
        lower(region.ops[:-1])
        yielded = [_as(context, value, like) for value, like in zip(region.ops[-1].operands, op.results, strict=True)]
        if types:
            context.effect(f"scf.yield {', '.join(name for names in yielded for name in names)} : {', '.join(types)}")
    context.effect("}")
    first = 0
    for value, count in zip(op.results, counts, strict=True):
        context.assign(value, [f"{result}#{first + i}" if len(types) > 1 else result for i in range(count)])
        first += count


def _as(context: Context, value: Value, like: Value) -> list[str]:
    return context.registers(value) if like.layout is None else registers_in(context, value, like.layout)


def _unroll(op: For) -> tuple[int, int, list[int]]:
    """How many turns to put into one, the step, and the loop variable of the turns left over at the end, which follow the loop;
    no unrolling where the number of turns is unknown or the body is pipelined."""
    bounds = [value.owner.value for value in op.operands[:3] if isinstance(value.owner, Constant)]
    if len(bounds) < 3 or any(isinstance(inner, For | AsyncCopy | SharedLoad) for inner in op.regions[0].walk()):
        return 1, 1, []
    lower, upper, step = (int(bound) for bound in bounds)
    turns = max(0, -(-(upper - lower) // step))
    # The largest factor that leaves nothing over, if it is large enough, else the largest.
    exact = max((factor for factor in range(1, MAX_UNROLL + 1) if turns and turns % factor == 0), default=1)
    factor = exact if 2 * exact > MAX_UNROLL or turns <= MAX_UNROLL else MAX_UNROLL
    return factor, step, [lower + step * turn for turn in range(turns - turns % factor, turns)]
