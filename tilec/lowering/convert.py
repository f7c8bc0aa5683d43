"""Bring a tile into another layout: by renaming registers where a thread already holds what it needs, else through shared
memory, row-major, with a barrier on either side."""

from __future__ import annotations

from tilec.ir.blocked_layouts import row_major, row_padding
from tilec.ir.core import Value
from tilec.ir.layout import Layout, register_map
from tilec.ir.ops import Broadcast, Constant
from tilec.ir.types import TileType
from tilec.lowering.context import Context, storage
from tilec.lowering.tensor_core import SHARED, arith, offset_pointer

Steps = tuple[int, ...]


def registers_in(context: Context, value: Value, layout: Layout) -> list[str]:
    """What this thread holds of `value` under `layout`."""
    held = context.registers(value)
    source = value.layout
    assert source is not None, value.type
    if source == layout:
        return held
    if isinstance(value.owner, Constant) or (len(set(held)) == 1 and _uniform(value)):
        return [held[0]] * layout.num_registers
    return moved(context, held, value.tile, source, layout)


def moved(context: Context, held: list[str], tile: TileType, source: Layout, target: Layout) -> list[str]:
    """The registers of a tile under `target`, given what this thread holds of it under `source`."""
    renamed = register_map(source, target)
    if renamed is not None:
        return [held[register] for register in renamed]
    steps = _steps(tile, source, target)
    return through_shared(context, held, tile, (source, steps), (target, steps), tile.shape[0] * steps[0])


def _steps(tile: TileType, *layouts: Layout) -> Steps:
    """Elements between neighbours on each axis; rows are padded where lanes lie on several of them."""
    padding = row_padding(tile)
    if padding and any(digit.axis == 0 and digit.extent > 1 for layout in layouts for digit in layout.lanes):
        return (tile.shape[-1] + padding // tile.dtype.bytes, 1)
    return row_major(tile.shape)


def _uniform(value: Value) -> bool:
    """True for a broadcast scalar: every thread holds the same element everywhere."""
    return isinstance(value.owner, Broadcast) and value.owner.operands[0].tile.size == 1


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
