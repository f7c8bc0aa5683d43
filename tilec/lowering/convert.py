"""Bring a tile into another layout: by renaming registers where a thread already holds what it needs, else through shared
memory, row-major, with a meeting of the block's threads in between. That all are done with the scratch before is for the
`block_barrier` operations to see to (`tilec.passes.meetings`)."""

from __future__ import annotations

from tilec.ir.core import Value
from tilec.ir.exchange import Steps, conversion_steps, is_uniform, renamed
from tilec.ir.layout import Layout
from tilec.ir.types import TileType
from tilec.lowering.context import Context, storage
from tilec.lowering.tensor_core import SHARED, arith, offset_pointer


def registers_in(context: Context, value: Value, layout: Layout) -> list[str]:
    """What this thread holds of `value` under `layout`. Free, but for a `relayout`."""
    held = context.registers(value)
    source = value.layout
    assert source is not None, value.type
    if source == layout:
        return held
    if is_uniform(value):
        return [held[0]] * layout.num_registers
    return moved(context, held, value.tile, source, layout)


def moved(context: Context, held: list[str], tile: TileType, source: Layout, target: Layout) -> list[str]:
    """The registers of a tile under `target`, given what this thread holds of it under `source`."""
    names = renamed(source, target)
    if names is not None:
        return [held[register] for register in names]
    steps = conversion_steps(tile, source, target)
    return through_shared(context, held, tile, (source, steps), (target, steps), tile.shape[0] * steps[0])


def through_shared(
    context: Context,
    held: list[str],
    tile: TileType,
    source: tuple[Layout, Steps],
    target: tuple[Layout, Steps],
    elements: int,
) -> list[str]:
    """Store by one layout, load by the other; each comes with the elements between neighbours on each of its axes, which all
    lie within `elements`."""
    dtype = tile.dtype
    is_bool = dtype.kind == "b"
    type_ = "i8" if is_bool else storage(dtype)
    if is_bool:
        held = [context.value(f"llvm.zext {name} : i1 to i8") for name in held]
    size = dtype.bytes
    scratch = context.scratch(elements * size)
    for register, pointer in enumerate(_pointers(context, scratch, *source, size)):
        context.effect(f"llvm.store {held[register]}, {pointer} : {type_}, {SHARED}")
    context.barrier()
    out = [
        context.value(f"llvm.load {pointer} : {SHARED} -> {type_}") for pointer in _pointers(context, scratch, *target, size)
    ]
    if is_bool:
        out = [context.value(f"llvm.trunc {name} : i8 to i1") for name in out]
    return out


def _pointers(context: Context, scratch: str, layout: Layout, steps: Steps, size: int) -> list[str]:
    """Shared address of each register's element."""
    base = None
    for coordinate, step in zip(context.thread_coordinates(layout), steps, strict=True):
        part = arith(context, "mul", coordinate, step * size)
        base = part if base is None else arith(context, "add", base, part)
    pointer = scratch if base is None else offset_pointer(context, scratch, base, SHARED)
    out: list[str] = []
    for register in range(layout.num_registers):
        fixed = sum(c * p for c, p in zip(layout.coordinates(register, 0, 0), steps, strict=True)) * size
        out.append(offset_pointer(context, pointer, fixed, SHARED))
    return out
