"""Loads operands of `mma.sync` from shared memory element by element: those whose rows there are not along K, of elements that
`ldmatrix` cannot transpose. Available on every target.

In: a matrix in shared memory and a fragment layout. Out: the elements of each thread, in the order of its registers. An access
has the width of one element.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilec.ir.layouts.layout import Digit, Layout
from tilec.ir.types import SharedType
from tilec.mlir.builder import Builder
from tilec.mlir.types import SsaValue, Type


@dataclass(frozen=True, slots=True)
class SharedMatrix:
    """The part at (row, column) `origin` of a matrix, or of its transpose if `transposed`, in the stage at a shared pointer."""

    type: SharedType
    stage: SsaValue
    origin: tuple[int, int]
    transposed: bool


def load(out: Builder, matrix: SharedMatrix, layout: Layout, lane: SsaValue, warp: SsaValue, element: Type) -> list[SsaValue]:
    """The elements of `layout`. `lane` and `warp` are i32, `element` is the type of an element in a register."""
    type = matrix.type
    axes = (1, 0) if matrix.transposed else (0, 1)
    own = [
        out.add(_part(out, layout.lanes, axis, lane), _part(out, layout.warps, axis, warp)) for axis in axes
    ]  # in the buffer: row, column
    rows: dict[int, tuple[SsaValue, SsaValue]] = {}
    columns: dict[int, tuple[SsaValue, SsaValue, SsaValue | None]] = {}
    loaded: list[SsaValue] = []
    for register in range(layout.num_registers):
        position = layout.coordinates(register, 0, 0)
        row, column = (position[axis] + matrix.origin[axis] for axis in axes)
        if row not in rows:
            rows[row] = _row(out, matrix, out.add(own[0], row))
        if column not in columns:
            columns[column] = _column(out, type, out.add(own[1], column))
        (pointer, phase), (chunk, byte, atom) = rows[row], columns[column]
        swizzled = out.bit_xor(chunk, phase) if type.swizzle_mask else chunk
        pointer = out.offset(pointer, out.add(out.shl(swizzled, 4), byte))
        loaded.append(out.load(pointer if atom is None else out.offset(pointer, atom), element))
    return loaded


def _part(out: Builder, digits: tuple[Digit, ...], axis: int, index: SsaValue) -> SsaValue:
    """What a lane or warp index adds to the coordinate on an axis."""
    total, weight = out.constant(0), 1
    for digit in digits:
        if digit.axis == axis and digit.extent > 1:
            total = out.add(total, out.mul(out.urem(out.udiv(index, weight), digit.extent), digit.stride))
        weight *= digit.extent
    return total


def _row(out: Builder, matrix: SharedMatrix, row: SsaValue) -> tuple[SsaValue, SsaValue]:
    """The pointer to a row, and the bits that the swizzle flips in its chunk numbers."""
    phase = out.bit_and(out.lshr(row, matrix.type.swizzle_shift), matrix.type.swizzle_mask)
    return out.offset(matrix.stage, out.mul(row, matrix.type.pitch)), phase


def _column(out: Builder, type: SharedType, column: SsaValue) -> tuple[SsaValue, SsaValue, SsaValue | None]:
    """Chunk and byte of a column in its row, and the bytes before its sub-tile if there are several."""
    atom = None
    if type.swizzle_atoms > 1:
        atom, column = out.mul(out.udiv(column, type.width), type.atom_bytes), out.urem(column, type.width)
    first = out.mul(column, type.dtype.bytes)
    return out.lshr(first, 4), out.bit_and(first, 15), atom
