"""Layout conversion: by renaming registers if each thread already has the elements it needs, else through scratch in shared
memory. The barriers before, between and after the stores and loads are separate operations."""

from __future__ import annotations

from contextlib import nullcontext

from tilec.ir.layouts.exchange import Steps, is_uniform, renamed
from tilec.ir.layouts.layout import Layout
from tilec.ir.ops.staging_ops import Put, Relayout, Take
from tilec.ir.types import TileType
from tilec.lowering.context import Context, storage
from tilec.lowering.places import Places
from tilec.lowering.rules import lowers
from tilec.mlir.types import SsaValue, i1, i8, i32


@lowers(Relayout)
def lower_relayout(context: Context, op: Relayout) -> None:
    """Renames registers: every thread already has the elements it needs."""
    value, target = op.operands[0], op.result.layout
    held = context.registers(value)
    assert value.layout is not None and target is not None
    if is_uniform(value):
        context.assign(op.result, [held[0]] * target.num_registers)
        return
    names = renamed(value.layout, target)
    assert names is not None, f"{value.layout} to {target} of {value.type} is no renaming"
    context.assign(op.result, [held[register] for register in names])


@lowers(Put)
def lower_put(context: Context, op: Put) -> None:
    """Stores each element from the registers that own it, not from wrapped copies (`tilec.ir.layouts.layout`). If an element is
    replicated over several threads, all of them store the same value, because selecting one of them costs more."""
    scratch, value = op.operands
    tile, layout = value.tile, value.layout
    assert layout is not None
    held = context.registers(value)
    if tile.dtype.kind == "b":
        held = [context.zext(one, i8) for one in held]
    pointer = context.scratch(scratch, _bytes(tile, op.steps))
    context.assign(scratch, [pointer])
    places = Places(context, layout, tile.shape)
    pointers = _pointers(context, pointer, layout, op.steps, places, tile.dtype.bytes)
    with context.replicated() if layout.is_replicated else nullcontext():
        for register, place in enumerate(pointers):
            with context.where(places.is_own(register)):
                context.store(held[register], place)


@lowers(Take)
def lower_take(context: Context, op: Take) -> None:
    """Every thread loads its elements of the result."""
    tile, layout = op.result.tile, op.result.layout
    assert layout is not None
    is_bool = tile.dtype.kind == "b"
    (pointer,) = context.registers(op.operands[0])
    pointers = _pointers(context, pointer, layout, op.steps, Places(context, layout, tile.shape), tile.dtype.bytes)
    out = [context.load(place, i8 if is_bool else storage(tile.dtype)) for place in pointers]
    context.assign(op.result, [context.trunc(value, i1) for value in out] if is_bool else out)


def _bytes(tile: TileType, steps: Steps) -> int:
    return (1 + sum(step * (extent - 1) for step, extent in zip(steps, tile.shape, strict=True))) * tile.dtype.bytes


def _pointers(
    context: Context, scratch: SsaValue, layout: Layout, steps: Steps, places: Places, size: int
) -> list[SsaValue]:  # fmt: skip
    """Shared address of each register's element."""
    base = None
    for coordinate, step in zip(places.own, steps, strict=True):
        part = context.mul(coordinate, step * size)
        base = part if base is None else context.add(base, part)
    pointer = scratch if base is None else context.offset(scratch, base)
    out: list[SsaValue] = []
    for register in range(layout.num_registers):
        moves = places.steps(register)
        at = context.offset(pointer, sum(c * p for c, p in zip(moves, steps, strict=True)) * size)
        for axis, (move, step) in enumerate(zip(moves, steps, strict=True)):
            back = places.shift(axis, move, step * size, i32)
            at = context.offset(at, back) if back else at
        out.append(at)
    return out
