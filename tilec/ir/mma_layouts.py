"""How a warp holds the operands of `mma.sync.m16n8k16`, and how warps divide a tile.

Fragments follow the PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type". With `group` = lane // 4 and
`pair` = lane % 4: A (16 x 16) holds rows `group` and `group + 8`, columns `2 pair`, `2 pair + 1` and the same plus 8;
B (16 x 8) holds the column `group` and rows `2 pair`, `2 pair + 1` and the same plus 8; C (16 x 8) holds rows `group` and
`group + 8`, columns `2 pair` and `2 pair + 1`. Registers count the elements of one fragment first, then fragments along K
(or N for C), then along M (or N for B), so one instruction's operands are neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tilec.ir.layout import Digit, Layout
from tilec.ir.ops import Mma

M: Final = 16
N: Final = 8
K: Final = 16
GROUP_M: Final = 64
"""Rows of a product that a group of four warps makes at once."""

GROUP_N_LIMIT: Final = 256
"""Columns that it makes at most."""

GROUP_ROW_BYTES: Final = 128
"""Bytes of a row of its operands in shared memory, the span of the widest swizzle."""


@dataclass(frozen=True, slots=True)
class WarpGrid:
    """Warps along M and along N of a tile; warp index = row index + `rows` * column index."""

    rows: int
    columns: int

    @property
    def count(self) -> int:
        return self.rows * self.columns


def fits(rows: int, columns: int, depth: int, warps: WarpGrid) -> bool:
    """Whether an (M, N, K) = (rows, columns, depth) product splits into whole instructions for each warp."""
    return rows % (M * warps.rows) == 0 and columns % (N * warps.columns) == 0 and depth % K == 0


def operand_a(rows: int, depth: int, warps: WarpGrid) -> Layout:
    """Layout of a (rows, depth) left operand; warps of one grid row hold the same elements."""
    tiles = rows // (M * warps.rows)
    registers = (Digit(2, 1, 1), Digit(2, 0, 8), Digit(2, 1, 8), Digit(depth // K, 1, K), Digit(tiles, 0, M))
    lanes = (Digit(4, 1, 2), Digit(8, 0, 1))
    return Layout(2, registers, lanes, (Digit(warps.rows, 0, M * tiles), Digit(warps.columns)))


def operand_b(depth: int, columns: int, warps: WarpGrid) -> Layout:
    """Layout of a (depth, columns) right operand; warps of one grid column hold the same elements."""
    tiles = columns // (N * warps.columns)
    registers = (Digit(2, 0, 1), Digit(2, 0, 8), Digit(depth // K, 0, K), Digit(tiles, 1, N))
    lanes = (Digit(4, 0, 2), Digit(8, 1, 1))
    return Layout(2, registers, lanes, (Digit(warps.rows), Digit(warps.columns, 1, N * tiles)))


def accumulator(rows: int, columns: int, warps: WarpGrid) -> Layout:
    """Layout of a (rows, columns) accumulator."""
    row_tiles, column_tiles = rows // (M * warps.rows), columns // (N * warps.columns)
    registers = (Digit(2, 1, 1), Digit(2, 0, 8), Digit(column_tiles, 1, N), Digit(row_tiles, 0, M))
    lanes = (Digit(4, 1, 2), Digit(8, 0, 1))
    return Layout(2, registers, lanes, (Digit(warps.rows, 0, M * row_tiles), Digit(warps.columns, 1, N * column_tiles)))


def group_accumulator(rows: int, columns: int, warps: int) -> Layout:
    """Layout of a (rows, columns) accumulator of `wgmma` on `warps` warps, in groups of four that each take whole tiles of 64
    rows (PTX ISA, "Matrix fragments for wgmma.mma_async.m64nNk16"): a warp holds 16 rows of a tile as in C above."""
    groups = warps // 4
    tiles = rows // (GROUP_M * groups)
    registers = (Digit(2, 1, 1), Digit(2, 0, 8), Digit(columns // N, 1, N), Digit(tiles, 0, GROUP_M))
    lanes = (Digit(4, 1, 2), Digit(8, 0, 1))
    return Layout(2, registers, lanes, (Digit(4, 0, M), Digit(groups, 0, GROUP_M * tiles)))


def choose_warps(rows: int, columns: int, count: int) -> WarpGrid | None:
    """The grid of `count` warps whose warp tiles read the least operand data; None where no grid fits."""
    grids = [WarpGrid(r, count // r) for r in range(1, count + 1) if count % r == 0]
    fitting = [grid for grid in grids if fits(rows, columns, K, grid)]
    return min(fitting, key=lambda grid: (rows // grid.rows + columns // grid.columns, grid.rows), default=None)


def default_warps(rows: int, columns: int) -> int:
    """Warps such that a thread holds at most 128 accumulators, at least four where the tile divides that far."""
    for count in (4, 8, 16):
        if choose_warps(rows, columns, count) and rows * columns <= count * 32 * 128:
            return count
    return next((count for count in (4, 2) if choose_warps(rows, columns, count)), 1)


def layouts_of(op: Mma, warps: int) -> tuple[Layout, Layout, Layout] | None:
    """Layouts of both operands and of the accumulator on `warps` warps; None where the instruction does not divide the tile."""
    rows, columns = op.result.tile.shape
    depth = op.operands[0].tile.shape[1]
    grid = choose_warps(rows, columns, warps)
    if grid is None or depth % K or op.operands[0].tile.dtype.bits != 16:
        return None
    return (
        operand_a(rows, depth, grid),
        operand_b(depth, columns, grid),
        accumulator(rows, columns, grid),
    )
