"""Bring a tile into another layout: by renaming registers where a thread already holds what it needs, else through shared
memory, row-major, with a barrier on either side."""

from __future__ import annotations

from tilec.ir.core import Value
from tilec.ir.layout import Layout, register_map
from tilec.ir.ops import Broadcast, Constant
from tilec.ir.types import DType
from tilec.lowering.context import Context, storage
from tilec.lowering.tensor_core import SHARED, arith, offset_pointer


def registers_in(context: Context, value: Value, layout: Layout) -> list[str]:
    """What this thread holds of `value` under `layout`."""
    held = context.registers(value)
    source = value.layout
    assert source is not None, value.type
    if source == layout:
        return held
    if isinstance(value.owner, Constant) or (len(set(held)) == 1 and _uniform(value)):
        return [held[0]] * layout.num_registers
    moved = register_map(source, layout)
    if moved is not None:
        return [held[register] for register in moved]
    return _through_shared(context, held, value.tile.shape, value.tile.dtype, source, layout)


def _uniform(value: Value) -> bool:
    """True for a broadcast scalar: every thread holds the same element everywhere."""
    return isinstance(value.owner, Broadcast) and value.owner.operands[0].tile.size == 1


def _through_shared(
    context: Context, held: list[str], shape: tuple[int, ...], dtype: DType, source: Layout, target: Layout
) -> list[str]:
    is_bool = dtype.kind == "b"
    type_ = "i8" if is_bool else storage(dtype)
    if is_bool:
        held = [context.value(f"llvm.zext {name} : i1 to i8") for name in held]
    pitches = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        pitches[axis] = pitches[axis + 1] * shape[axis + 1]
    size = dtype.bytes
    scratch = context.scratch(pitches[0] * shape[0] * size)
    context.barrier()
    for register, pointer in enumerate(_pointers(context, scratch, source, pitches, size)):
        context.effect(f"llvm.store {held[register]}, {pointer} : {type_}, {SHARED}")
    context.barrier()
    out = [
        context.value(f"llvm.load {pointer} : {SHARED} -> {type_}")
        for pointer in _pointers(context, scratch, target, pitches, size)
    ]
    if is_bool:
        out = [context.value(f"llvm.trunc {name} : i8 to i1") for name in out]
    return out


def _pointers(context: Context, scratch: str, layout: Layout, pitches: list[int], size: int) -> list[str]:
    """Shared address of each register's element."""
    base = None
    for coordinate, pitch in zip(context.thread_coordinates(layout), pitches, strict=True):
        part = arith(context, "mul", coordinate, pitch * size)
        base = part if base is None else arith(context, "add", base, part)
    pointer = scratch if base is None else offset_pointer(context, scratch, base, SHARED)
    out: list[str] = []
    for register in range(layout.num_registers):
        fixed = sum(c * p for c, p in zip(layout.coordinates(register, 0, 0), pitches, strict=True)) * size
        out.append(offset_pointer(context, pointer, fixed, SHARED))
    return out
