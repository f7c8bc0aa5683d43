"""A block's own part of an atomic tensor in shared memory: filled, updated, and combined with the tensor at the end.

Threads go through the places in rounds, adjacent threads on adjacent places, so that a warp's atomics on a tensor lie side by
side; a round is an iteration of a loop where there are many.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tilec.ir.core import Value
from tilec.ir.layouts.blocked_layouts import row_major
from tilec.ir.ops.private_ops import SPARE_SLOTS, PrivateFill, PrivateFlush, PrivateUpdate, neutral
from tilec.lowering.atomics import combine, combine_in_block
from tilec.lowering.context import Context, literal
from tilec.lowering.coordinates import TileCoordinates, conjunction, is_first_owner
from tilec.lowering.positions import Position, position
from tilec.lowering.rules import lowers
from tilec.lowering.words import store_vector
from tilec.mlir.types import SsaValue, i32, i64, integer

VECTOR: Final = 16
"""Bytes that a thread fills at once."""
MOST_COPIES: Final = 8
"""Rounds that are no loop."""


@lowers(PrivateFill)
def lower_private_fill(context: Context, op: PrivateFill) -> None:
    """Vectors of 16 bytes."""
    dtype = op.operands[1].tensor.dtype
    size = op.part.scratch.bytes
    part = context.scratch(op.part, size)
    element = literal(context, neutral(op.kind, dtype), dtype)

    def fill(number: SsaValue) -> None:
        pointer = context.offset(part, context.mul(number, VECTOR))
        store_vector(context, pointer, [element] * (VECTOR // dtype.bytes))

    _rounds(context, size // VECTOR, fill)


@lowers(PrivateUpdate)
def lower_private_update(context: Context, op: PrivateUpdate) -> None:
    """One relaxed atomic per element, by the first of the threads that have it. A thread whose position lies outside the tensor
    updates the spare place of its lane instead: ptxas makes a branch of every atomic that is predicated, and lanes that met in
    one spare place would wait for each other."""
    dtype, layout = op.tile.tile.dtype, op.tile.layout
    assert layout is not None
    part = context.scratch(op.part, op.part.scratch.bytes)
    coordinates = TileCoordinates(context, layout, op.tile.tile.shape)
    indices = [[position(context, index, one) for one in context.registers(index)] for index in op.indices]
    extents = [context.extent(op.tensor, axis) for axis in range(len(op.shape))] if op.mask else []
    spare = context.add(context.bit_and(context.thread(), SPARE_SLOTS - 1), op.slots) if op.mask else None
    with context.where(is_first_owner(context, layout)):
        for register, value in enumerate(context.registers(op.tile)):
            at_axes = [index[register] for index in indices]
            inside: SsaValue | None = None
            for one, extent in zip(at_axes, extents, strict=False):
                inside = conjunction(context, inside, one.below(context, extent))
            number = _number(context, [_narrow(context, one) for one in at_axes], op.shape)
            number = context.select(inside, number, spare) if inside and spare else number
            pointer = context.offset(part, context.mul(number, dtype.bytes))
            with context.where(coordinates.is_original(register)):
                combine_in_block(context, op.kind, pointer, value, dtype)


@lowers(PrivateFlush)
def lower_private_flush(context: Context, op: PrivateFlush) -> None:
    """One relaxed atomic for each place that is not neutral, bit by bit: an element that no position named keeps its bits."""
    tensor = op.operands[0]
    dtype = tensor.tensor.dtype
    bits = integer(dtype.bits)
    part = context.scratch(op.part, op.part.scratch.bytes)
    element = literal(context, neutral(op.kind, dtype), dtype)
    unused = element if element.type is bits else context.bitcast(element, bits)

    def flush(number: SsaValue) -> None:
        value = context.load(context.offset(part, context.mul(number, dtype.bytes)), bits)
        coordinates = _coordinates(context, number, op.shape)
        changed = context.compare("ne", value, unused)
        with context.where(conjunction(context, changed, _inside(context, tensor, coordinates, op.shape))):
            combine(context, op.kind, _pointer(context, tensor, number, coordinates), value, dtype)

    _rounds(context, op.slots, flush)


def _rounds(context: Context, count: int, body: Callable[[SsaValue], None]) -> None:
    """Runs `body` for every number below `count`, each in one thread."""
    rounds, rest = divmod(count, context.threads)

    def one(first: SsaValue | int, limited: bool) -> None:
        number = context.add(context.thread(), first)
        with context.where(context.compare("ult", number, context.constant(count)) if limited else None):
            body(number)

    if rounds <= MOST_COPIES:
        for turn in range(rounds):
            one(turn * context.threads, limited=False)
    else:

        def iteration(index: SsaValue, _: list[SsaValue]) -> list[SsaValue]:
            one(index, limited=False)
            return []

        context.loop(context.constant(0), rounds * context.threads, context.threads, [], iteration)
    if rest:
        one(rounds * context.threads, limited=True)


def _narrow(context: Context, one: Position) -> SsaValue:
    """A position inside a tensor, which has few elements, as i32."""
    return one.value if one.value.type is i32 else context.trunc(one.value, i32)


def _number(context: Context, at_axes: list[SsaValue], shape: tuple[int, ...]) -> SsaValue:
    number: SsaValue | None = None
    for one, step in zip(at_axes, row_major(shape), strict=True):
        part = context.mul(one, step)
        number = part if number is None else context.add(number, part)
    assert number is not None
    return number


def _coordinates(context: Context, number: SsaValue, shape: tuple[int, ...]) -> list[SsaValue]:
    out: list[SsaValue] = []
    for axis, step in enumerate(row_major(shape)):
        part = context.udiv(number, step)
        out.append(context.urem(part, shape[axis]) if axis else part)
    return out


def _inside(context: Context, tensor: Value, coordinates: list[SsaValue], shape: tuple[int, ...]) -> SsaValue | None:
    """Whether the tensor has the element, where an extent is known at launch alone."""
    inside: SsaValue | None = None
    for axis, coordinate in enumerate(coordinates):
        if tensor.tensor.dims[axis].constant is None:
            inside = conjunction(context, inside, context.compare("ult", coordinate, context.extent(tensor, axis)))
    return inside


def _pointer(context: Context, tensor: Value, number: SsaValue, coordinates: list[SsaValue]) -> SsaValue:
    """Address of an element; of a contiguous tensor of constant extents by its number."""
    type_, size = tensor.tensor, tensor.tensor.dtype.bytes
    if type_.strides is None and all(dim.constant is not None for dim in type_.dims[1:]):
        return context.offset(context.pointer(tensor), context.mul(context.zext(number, i64), size))
    pointer = context.pointer(tensor)
    for axis, coordinate in enumerate(coordinates):
        step = context.mul(context.stride(tensor, axis), size)
        pointer = context.offset(pointer, context.mul(context.zext(coordinate, i64), step))
    return pointer
