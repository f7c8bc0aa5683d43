"""Stores a matrix in the layout of an accumulator to shared memory in row-major order, four 8 x 8 matrices of 16-bit elements
at once (PTX ISA, `stmatrix`): that of `wgmma`, or one loaded by `tcgen05.ld`. Available on every target."""

from __future__ import annotations

from itertools import product
from typing import Final

from tilec.atoms import mma_sync, tcgen05, wgmma
from tilec.ir.layouts.layout import Digit, Layout
from tilec.ir.types import SharedType
from tilec.mlir.builder import Builder
from tilec.mlir.types import SsaValue

MATRIX: Final = 8
"""Rows and columns of a matrix; one instruction stores 2 x 2 matrices."""
WARPS: Final = 4
"""Warps of a group, which have the rows of one tile."""


def fits(layout: Layout, rows: int, columns: int, warps: int) -> bool:
    """Whether `store_rows` can store a (rows, columns) matrix in this layout on so many warps."""
    return any(
        atom.fits(rows, columns, warps) and _plain(layout) == _plain(atom.accumulator(rows, columns, warps))
        for atom in (wgmma, tcgen05)
    )


def _plain(layout: Layout) -> tuple[object, ...]:
    digits = layout.registers, layout.lanes, layout.warps
    return layout.space, *(tuple(digit for digit in digits_of_index if digit.extent > 1) for digits_of_index in digits)


def store_rows(
    out: Builder,
    rows: SharedType,
    base: SsaValue,
    registers: list[SsaValue],
    layout: Layout,
    first: int,
    lane: SsaValue,
    warp: SsaValue,
) -> None:
    """Store columns `first` to `first + rows.width` of a matrix at shared pointer `base`, which has the alignment of the
    swizzle of `rows`. `registers`: the thread's elements in `layout`, for which `fits` holds. `lane` and `warp` (index among
    the warps that have the matrix) are i32."""
    group, warp_in_group = out.lshr(warp, 2), out.bit_and(warp, WARPS - 1)
    (own, groups), row_digits = layout.warps, [digit for digit in layout.registers[2:] if digit.axis == 0]
    row = out.mul(warp_in_group, own.stride)
    if groups.axis == 0:
        row = out.add(out.mul(group, groups.stride), row)
    row = out.add(row, out.bit_and(lane, 2 * MATRIX - 1))
    row_pointer = out.offset(base, out.mul(row, rows.pitch))
    # All parts of the row except the lane's are multiples of 8, and the swizzle repeats every 8 rows.
    phase = out.bit_and(out.lshr(lane, rows.swizzle_shift), rows.swizzle_mask)
    phase = out.bit_xor(phase, out.lshr(lane, 4))  # lanes 16 and up address the right-hand matrices
    if groups.axis == 1 and groups.extent > 1:  # the bits of a group's column are none of the other ones'
        phase = out.bit_xor(phase, out.mul(group, groups.stride // MATRIX))
    for column, first_register in _columns(layout, first, rows.width):
        address = out.offset(row_pointer, out.shl(out.bit_xor(phase, column // MATRIX), 4))
        for row_step, register in _steps(row_digits, layout):
            pairs = [
                mma_sync.pack(out, registers[number], registers[number + 1], rows.dtype)
                for number in range(first_register + register, first_register + register + 8, 2)
            ]
            _stmatrix(out, out.offset(address, row_step * rows.pitch), pairs)


def _columns(layout: Layout, first: int, width: int) -> list[tuple[int, int]]:
    """Columns of the first group of warps in a range of `width` columns, relative to its beginning and two matrices at a time,
    each with the number of its first register."""
    digits = [digit for digit in layout.registers[2:] if digit.axis == 1]
    found = [(column - first, register) for column, register in _steps(digits, layout) if first <= column < first + width]
    return found[::2]


def _steps(digits: list[Digit], layout: Layout) -> list[tuple[int, int]]:
    """All sums of steps of some register digits, each with the number of its register."""
    weights: dict[Digit, int] = {}
    weight = 1
    for digit in layout.registers:
        weights[digit] = weight
        weight *= digit.extent
    return [
        (
            sum(i * d.stride for i, d in zip(index, digits, strict=True)),
            sum(i * weights[d] for i, d in zip(index, digits, strict=True)),
        )
        for index in (each[::-1] for each in product(*(range(digit.extent) for digit in reversed(digits))))
    ]


def _stmatrix(out: Builder, address: SsaValue, pairs: list[SsaValue]) -> None:
    text = "stmatrix.sync.aligned.m8n8.x4.shared.b16 [$0], {$1, $2, $3, $4};"
    out.inline_ptx(text, "l,r,r,r,r,~{memory}", [address, *pairs], side_effects=True)
