"""`mma.sync.m16n8k16`: fragment layouts, division of a tile among warps, and the instruction. Available on every target.

Fragments follow the PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type". With `group` = lane // 4 and `pair`
= lane % 4, a lane has of A (16 x 16) rows `group` and `group + 8`, columns `2 pair`, `2 pair + 1` and the same plus 8; of B (16
x 8) column `group`, rows `2 pair`, `2 pair + 1` and the same plus 8; of C (16 x 8) rows `group` and `group + 8`, columns `2
pair` and `2 pair + 1`. The register index counts the elements of one fragment first, then fragments along K (or N for C), then
along M (or N for B), so the operands of one instruction are adjacent.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Final

from tilec.ir.layouts.layout import Digit, Layout
from tilec.ir.types import DType, bf16
from tilec.mlir.builder import Builder
from tilec.mlir.types import SsaValue, f16, f32, floating, i32, vector
from tilec.target.families import MMA_SYNC

FAMILY: Final = MMA_SYNC
M: Final = FAMILY.shape.rows
N: Final = FAMILY.shape.columns
K: Final = FAMILY.shape.depth


@dataclass(frozen=True, slots=True)
class WarpGrid:
    """Number of warps along M (`rows`) and N (`columns`) of a tile; warp index = row index + `rows` * column index."""

    rows: int
    columns: int

    @property
    def count(self) -> int:
        return self.rows * self.columns


def fits(rows: int, columns: int, depth: int, warps: WarpGrid) -> bool:
    """Whether an (M, N, K) = (rows, columns, depth) product splits into whole instructions for each warp."""
    return rows % (M * warps.rows) == 0 and columns % (N * warps.columns) == 0 and depth % K == 0


def operand_a(rows: int, depth: int, warps: WarpGrid) -> Layout:
    """Layout of a (rows, depth) A operand; the warps of one grid row have the same elements."""
    tiles = rows // (M * warps.rows)
    registers = (Digit(2, 1, 1), Digit(2, 0, 8), Digit(2, 1, 8), Digit(depth // K, 1, K), Digit(tiles, 0, M))
    lanes = (Digit(4, 1, 2), Digit(8, 0, 1))
    return Layout(2, registers, lanes, (Digit(warps.rows, 0, M * tiles), Digit(warps.columns)))


def operand_b(depth: int, columns: int, warps: WarpGrid) -> Layout:
    """Layout of a (depth, columns) B operand; the warps of one grid column have the same elements."""
    tiles = columns // (N * warps.columns)
    registers = (Digit(2, 0, 1), Digit(2, 0, 8), Digit(depth // K, 0, K), Digit(tiles, 1, N))
    lanes = (Digit(4, 0, 2), Digit(8, 1, 1))
    return Layout(2, registers, lanes, (Digit(warps.rows), Digit(warps.columns, 1, N * tiles)))


def accumulator(rows: int, columns: int, warps: WarpGrid) -> Layout:
    """Layout of a (rows, columns) accumulator."""
    row_tiles, column_tiles = rows // (M * warps.rows), columns // (N * warps.columns)
    registers = (Digit(2, 1, 1), Digit(2, 0, 8), Digit(column_tiles, 1, N), Digit(row_tiles, 0, M))
    lanes = (Digit(4, 1, 2), Digit(8, 0, 1))
    warp_digits = (Digit(warps.rows, 0, M * row_tiles), Digit(warps.columns, 1, N * column_tiles))
    return Layout(2, registers, lanes, warp_digits, FAMILY.accumulators)


def choose_warps(rows: int, columns: int, count: int) -> WarpGrid | None:
    """The grid of `count` warps whose warp tiles read the least operand data; None if no grid fits."""
    grids = [WarpGrid(r, count // r) for r in range(1, count + 1) if count % r == 0]
    fitting = [grid for grid in grids if fits(rows, columns, K, grid)]
    return min(fitting, key=lambda grid: (rows // grid.rows + columns // grid.columns, grid.rows), default=None)


def default_warps(rows: int, columns: int) -> int:
    """The fewest of 4, 8 or 16 warps with at most 128 accumulators per thread; otherwise 4, 2 or 1, as the tile divides."""
    for count in (4, 8, 16):
        if choose_warps(rows, columns, count) and rows * columns <= count * 32 * 128:
            return count
    return next((count for count in (4, 2) if choose_warps(rows, columns, count)), 1)


def multiply(out: Builder, a: list[SsaValue], b: list[SsaValue], c: list[SsaValue], dtype: DType) -> list[SsaValue]:
    """One `mma.sync.m16n8k16`: four i32 of A, two of B, four f32 of C; returns four f32."""
    if dtype == bf16:
        name, operands = "bf16", [*a, *b]
    else:
        name, operands = "f32.f32", [out.bitcast(value, vector(2, f16)) for value in (*a, *b)]
    return out.instruction(f"mma.m16n8k16.row.col.{name}", [*operands, *c], [f32] * 4)


def pack(out: Builder, low: SsaValue, high: SsaValue, dtype: DType) -> SsaValue:
    """Two 16-bit floats as one i32."""
    return out.bitcast(out.packed([low, high], vector(2, floating(dtype.name))), i32)


def unpack(out: Builder, packed: SsaValue, dtype: DType) -> list[SsaValue]:
    """The two 16-bit floats of an i32."""
    pair = out.bitcast(packed, vector(2, floating(dtype.name)))
    return [out.extract(pair, i) for i in range(2)]


def beside(layout: Layout, products: int, warps: int) -> Layout:
    """The layout of a batch of `products` matrices, with the batch as axis 0, from the `layout` of one matrix. The batch is
    divided among `warps` groups of the warps of `layout`; each group has consecutive matrices, outermost in its registers."""

    def shifted(digits: tuple[Digit, ...]) -> tuple[Digit, ...]:
        return tuple(d if d.axis is None else Digit(d.extent, d.axis + 1, d.stride) for d in digits)

    products_per_group = products // warps
    return Layout(
        3,
        (*shifted(layout.registers), Digit(products_per_group, 0, 1)),
        shifted(layout.lanes),
        (*shifted(layout.warps), Digit(warps, 0, products_per_group)),
        layout.space,
    )


def products_of_thread(accumulator: Layout) -> int:
    """Number of matrices of a batch of which a thread has elements."""
    return prod(digit.extent for digit in accumulator.registers if digit.axis == 0)
