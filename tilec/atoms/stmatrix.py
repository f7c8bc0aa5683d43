"""Stores a matrix in the layout of a `wgmma` accumulator to shared memory in row-major order, four 8 x 8 matrices of 16-bit
elements at once (PTX ISA, `stmatrix`). Available on every target."""

from __future__ import annotations

from typing import Final

from tilec.atoms import mma_sync, wgmma
from tilec.ir.layouts.layout import Digit, Layout
from tilec.ir.types import SharedType
from tilec.mlir.builder import Builder
from tilec.mlir.types import SsaValue

MATRIX: Final = 8
"""Rows and columns of a matrix; one instruction stores 2 x 2 matrices."""


def fits(layout: Layout, rows: int, columns: int, warps: int) -> bool:
    """Whether `store_rows` can store a (rows, columns) matrix in this layout on so many warps."""
    issuers = wgmma.FAMILY.issuers(warps)
    if not issuers or rows % (wgmma.GROUP_M * issuers):
        return False
    stored = wgmma.accumulator(rows, columns, warps)
    return layout.space is stored.space and _plain(layout) == _plain(stored)


def _plain(layout: Layout) -> tuple[tuple[Digit, ...], ...]:
    digits = layout.registers, layout.lanes, layout.warps
    return tuple(tuple(digit for digit in digits_of_index if digit.extent > 1) for digits_of_index in digits)


def store_rows(
    out: Builder,
    rows: SharedType,
    base: SsaValue,
    registers: list[SsaValue],
    columns: int,
    first: int,
    lane: SsaValue,
    warp: SsaValue,
) -> None:
    """Store columns `first` to `first + rows.width` of a matrix with `columns` columns at shared pointer `base`, which has the
    alignment of the swizzle of `rows`. `registers`: the thread's elements in the layout `wgmma.accumulator`. `lane` and
    `warp` (index among the warps that have the matrix) are i32."""
    groups = columns // MATRIX  # of 8 columns; each has two registers, and two more for the row 8 further down
    tiles = len(registers) // (4 * groups)
    group, warp_in_group = out.lshr(warp, 2), out.bit_and(warp, 3)
    row = out.add(out.mul(group, wgmma.GROUP_M * tiles), out.mul(warp_in_group, 2 * MATRIX))
    row = out.add(row, out.bit_and(lane, 2 * MATRIX - 1))
    row_pointer = out.offset(base, out.mul(row, rows.pitch))
    # All parts of the row except the lane's are multiples of 8, and the swizzle repeats every 8 rows.
    phase = out.bit_and(out.lshr(lane, rows.swizzle_shift), rows.swizzle_mask)
    phase = out.bit_xor(phase, out.lshr(lane, 4))  # lanes 16 and up address the right-hand matrices
    for column in range(0, rows.width // MATRIX, 2):
        address = out.offset(row_pointer, out.shl(out.bit_xor(phase, column), 4))
        for tile in range(tiles):
            first_register = 4 * (groups * tile + first // MATRIX + column)
            pairs = [
                mma_sync.pack(out, registers[register], registers[register + 1], rows.dtype)
                for register in range(first_register, first_register + 8, 2)
            ]
            _stmatrix(out, out.offset(address, tile * wgmma.GROUP_M * rows.pitch), pairs)


def _stmatrix(out: Builder, address: SsaValue, pairs: list[SsaValue]) -> None:
    text = "stmatrix.sync.aligned.m8n8.x4.shared.b16 [$0], {$1, $2, $3, $4};"
    out.inline_ptx(text, "l,r,r,r,r,~{memory}", [address, *pairs], side_effects=True)
