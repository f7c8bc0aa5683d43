"""Loads operands of `mma.sync` from shared memory, up to four matrices of 8 rows of 16 bytes at once (PTX ISA, `ldmatrix`).
Available on every target.

A lane gets the 32-bit word `lane % 4` of row `lane // 4`, which is what fragments take of rows along K, whatever the elements'
width. Only elements of 16 bits can be transposed on the way.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilec.ir.layouts.layout import Layout
from tilec.ir.types import DType, SharedType
from tilec.mlir.builder import Builder
from tilec.mlir.types import SsaValue, i32


@dataclass(frozen=True, slots=True)
class LaneOrigins:
    """How lanes address 8 x 8 matrices: each instruction loads a group of `width` (1, 2 or 4) matrices; the origin of matrix i
    is the group's origin plus `(i & 1) * first + (i >> 1) * second`; `trans` transposes each matrix."""

    width: int
    first: tuple[int, int]
    second: tuple[int, int]
    trans: bool


def loads(layout: Layout, dtype: DType, transposed: bool) -> bool:
    """Whether `load_matrices` can load an operand: its rows in the buffer are along K, or its elements have 16 bits."""
    return dtype.bits == 16 or layout.registers[0].axis == (0 if transposed else 1)


def lane_origins(layout: Layout, transposed: bool) -> LaneOrigins:
    """The matrix addressing of an operand layout; origins are (row, column) in the buffer, so swapped if `transposed`."""
    pair_axis = layout.registers[0].axis
    count = layout.num_registers // layout.registers[0].extent
    origins = [_matrix_origin(layout, i, 0, transposed) for i in range(count)]
    contiguous_axis = 0 if transposed else 1
    trans = pair_axis != contiguous_axis
    width = next(size for size in (4, 2, 1) if count % size == 0)
    first = _minus(origins[1], origins[0]) if width > 1 else (0, 0)
    second = _minus(origins[2], origins[0]) if width > 2 else (0, 0)
    return LaneOrigins(width, first, second, trans)


def _matrix_origin(layout: Layout, matrix: int, warp: int, transposed: bool) -> tuple[int, int]:
    row, column = layout.coordinates(layout.registers[0].extent * matrix, 0, warp)
    return (column, row) if transposed else (row, column)


def _minus(left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
    return left[0] - right[0], left[1] - right[1]


def load_matrices(
    out: Builder,
    type: SharedType,
    stage: SsaValue,
    layout: Layout,
    lane: SsaValue,
    warp: SsaValue,
    origin: tuple[int, int],
    transposed: bool,
) -> list[SsaValue]:
    """Load the operand at (row, column) `origin` of the tile from the stage at shared pointer `stage`.

    Returns one i32 per word of the layout's registers, in order. `lane` and `warp` are i32.
    """
    pattern = lane_origins(layout, transposed)
    start = (origin[1], origin[0]) if transposed else origin
    inner = out.bit_and(lane, 7)
    matrix = out.lshr(lane, 3)
    low, high = out.bit_and(matrix, 1), out.bit_and(out.lshr(matrix, 1), 1)
    row, column = _warp_origin(out, layout, warp, transposed)
    row = out.add(row, inner)
    for bit, step in ((low, pattern.first), (high, pattern.second)):
        row = out.add(row, out.mul(bit, step[0])) if step[0] else row
        column = out.add(column, out.mul(bit, step[1])) if step[1] else column
    # Matrices start at multiples of 8 rows, and the swizzle repeats every 8 rows, so its phase depends on the lane alone.
    phase = out.bit_and(out.lshr(inner, type.swizzle_shift), type.swizzle_mask)
    row_pointer = out.offset(stage, out.mul(row, type.pitch))
    reach = _reach(layout, pattern, transposed)
    registers: list[SsaValue] = []
    chunk_shift = (16 // type.dtype.bytes).bit_length() - 1
    for group in range(0, layout.num_registers // layout.registers[0].extent, pattern.width):
        fixed_row, fixed_column = _matrix_origin(layout, group, 0, transposed)
        atom, first = divmod(start[1] + fixed_column, type.width)
        inside = type.swizzle_atoms == 1 or first + reach < type.width
        chunk = out.lshr(out.add(column, first if inside else start[1] + fixed_column), chunk_shift)
        pointer = row_pointer
        if inside:
            pointer = out.offset(pointer, atom * type.atom_bytes) if atom else pointer
        else:  # in which sub-tile the columns lie depends on the lane or the warp
            pointer = out.offset(pointer, out.mul(out.udiv(chunk, type.chunks), type.atom_bytes))
            chunk = out.urem(chunk, type.chunks)
        if type.swizzle_mask:
            chunk = out.bit_xor(chunk, phase)
        pointer = out.offset(pointer, out.shl(chunk, 4))
        pointer = out.offset(pointer, (start[0] + fixed_row) * type.pitch)
        registers.extend(_ldmatrix(out, pointer, pattern.width, pattern.trans))
    return registers


def _reach(layout: Layout, pattern: LaneOrigins, transposed: bool) -> int:
    """The most columns of the buffer by which a matrix of any lane and warp lies after that of the first ones."""
    axis = 0 if transposed else 1
    warps = sum((digit.extent - 1) * digit.stride for digit in layout.warps if digit.axis == axis)
    return warps + pattern.first[1] + pattern.second[1]


def _warp_origin(out: Builder, layout: Layout, warp: SsaValue, transposed: bool) -> tuple[SsaValue, SsaValue]:
    origin = [out.constant(0), out.constant(0)]
    weight = 1
    for digit in layout.warps:
        if digit.axis is not None and digit.extent > 1:
            step = out.urem(out.udiv(warp, weight), digit.extent)
            origin[digit.axis] = out.add(origin[digit.axis], out.mul(step, digit.stride))
        weight *= digit.extent
    return (origin[1], origin[0]) if transposed else (origin[0], origin[1])


def _ldmatrix(out: Builder, pointer: SsaValue, width: int, trans: bool) -> list[SsaValue]:
    name = f"ldmatrix.sync.aligned.m8n8.x{width}{'.trans' if trans else ''}.b16.p3"
    return out.instruction(name, [pointer], [i32] * width)
