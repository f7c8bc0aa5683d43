"""Layout conversion: by renaming or choosing registers if each thread already has the elements it needs, else through scratch
in shared memory. The barriers before, between and after the stores and loads are separate operations."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from tilec.atoms.products import MOVES
from tilec.ir.layouts.conversion_scratch import Steps, is_uniform, renamed
from tilec.ir.layouts.layout import Layout
from tilec.ir.layouts.selections import Selection, selection
from tilec.ir.ops.staging_ops import Relayout, ScratchLoad, ScratchStore, ScratchStoreOwned
from tilec.ir.types import TileType
from tilec.lowering.context import Context, storage
from tilec.lowering.coordinates import TileCoordinates, is_first_owner
from tilec.lowering.rules import lowers
from tilec.mlir.types import SsaValue, i1, i8, i32
from tilec.target.families import MemorySpace


@lowers(Relayout)
def lower_relayout(context: Context, op: Relayout) -> None:
    """Renames registers, or chooses among them, as every thread already has the elements it needs; or moves them to or from
    another memory space."""
    value, target = op.operands[0], op.result.layout
    registers = context.registers(value)
    assert value.layout is not None and target is not None
    if value.layout.space is not target.space:
        elsewhere = next(space for space in (value.layout.space, target.space) if space is not MemorySpace.REGISTERS)
        context.assign(op.result, MOVES[elsewhere](context, registers, value.layout, target))
        return
    if is_uniform(value):
        context.assign(op.result, [registers[0]] * target.num_registers)
        return
    register_indices = renamed(value.layout, target)
    if register_indices is not None:
        context.assign(op.result, [registers[register] for register in register_indices])
        return
    chosen = selection(value.layout, target, value.tile.shape)
    assert chosen is not None, f"{value.layout} to {target} of {value.type} is neither a renaming nor a selection"
    context.assign(op.result, _selected(context, registers, chosen))


def _selected(context: Context, registers: list[SsaValue], chosen: Selection) -> list[SsaValue]:
    """The registers that the thread's index chooses, one bit of it at a time."""
    thread, zero = context.thread(), context.constant(0)
    rows = [[registers[register] for register in row] for row in chosen.registers]
    for bit in reversed(chosen.bits):
        is_set = context.compare("ne", context.bit_and(thread, 1 << bit), zero)
        pairs = zip(rows[::2], rows[1::2], strict=True)
        rows = [[context.select(is_set, one, other) for other, one in zip(*pair, strict=True)] for pair in pairs]
    return rows[0]


@lowers(ScratchStore)
def lower_scratch_store(context: Context, op: ScratchStore) -> None:
    """Stores each element from the registers that own it, not from wrapped copies (`tilec.ir.layouts.layout`). If an element is
    replicated over several threads, all of them store the same value, because selecting one of them costs more."""
    _store(context, op, context.replicated if op.operands[1].layout and op.operands[1].layout.is_replicated else nullcontext)


@lowers(ScratchStoreOwned)
def lower_scratch_store_owned(context: Context, op: ScratchStoreOwned) -> None:
    """Stores each element from the first thread that has it."""
    layout = op.operands[1].layout
    assert layout is not None
    first = is_first_owner(context, layout)
    _store(context, op, lambda: context.where(first))


def _store(context: Context, op: ScratchStore, by: Callable[[], AbstractContextManager[None]]) -> None:
    scratch, value = op.operands
    tile, layout = value.tile, value.layout
    assert layout is not None
    registers = context.registers(value)
    if tile.dtype.kind == "b":
        registers = [context.zext(register, i8) for register in registers]
    pointer = context.scratch(scratch, _scratch_bytes(tile, op.steps))
    context.assign(scratch, [pointer])
    coordinates = TileCoordinates(context, layout, tile.shape)
    addresses = scratch_addresses(context, pointer, layout, op.steps, coordinates, tile.dtype.bytes)
    with by():
        for register, address in enumerate(addresses):
            with context.where(coordinates.is_original(register)):
                context.store(registers[register], address)


@lowers(ScratchLoad)
def lower_scratch_load(context: Context, op: ScratchLoad) -> None:
    """Every thread loads its elements of the result."""
    tile, layout = op.result.tile, op.result.layout
    assert layout is not None
    is_bool = tile.dtype.kind == "b"
    (pointer,) = context.registers(op.operands[0])
    addresses = scratch_addresses(
        context, pointer, layout, op.steps, TileCoordinates(context, layout, tile.shape), tile.dtype.bytes
    )
    out = [context.load(address, i8 if is_bool else storage(tile.dtype)) for address in addresses]
    context.assign(op.result, [context.trunc(value, i1) for value in out] if is_bool else out)


def _scratch_bytes(tile: TileType, steps: Steps) -> int:
    return (1 + sum(step * (extent - 1) for step, extent in zip(steps, tile.shape, strict=True))) * tile.dtype.bytes


def scratch_addresses(
    context: Context, scratch: SsaValue, layout: Layout, steps: Steps, coordinates: TileCoordinates, size: int
) -> list[SsaValue]:  # fmt: skip
    """Shared address of each register's element."""
    base = None
    for coordinate, step in zip(coordinates.thread_origin, steps, strict=True):
        part = context.mul(coordinate, step * size)
        base = part if base is None else context.add(base, part)
    pointer = scratch if base is None else context.offset(scratch, base)
    out: list[SsaValue] = []
    for register in range(layout.num_registers):
        distances = coordinates.steps(register)
        address = context.offset(pointer, sum(c * s for c, s in zip(distances, steps, strict=True)) * size)
        for axis, (distance, step) in enumerate(zip(distances, steps, strict=True)):
            wrap_offset = coordinates.shift(axis, distance, step * size, i32)
            address = context.offset(address, wrap_offset) if wrap_offset else address
        out.append(address)
    return out
