"""`mma.sync.m16n8k8` of tf32, `.m16n8k16` of 16 bits and `.m16n8k32` of 8 bits: fragment layouts, division of a tile among
warps, and the instructions. Available on every target, of 8-bit floats where `Target.multiplies_f8` says so.

Fragments follow the PTX ISA, "Matrix Fragments for mma.m16n8k8", "m16n8k16" and "m16n8k32". A 32-bit register has `word` = 32
/ bits elements, neighbors along K. With `group` = lane // 4 and `pair` = lane % 4, a lane has of A (16 x K) rows `group` and
`group + 8`, columns `word * pair` to `word * pair + word - 1` and the same plus `4 * word`; of B (K x 8) column `group` and
such rows; of C (16 x 8) rows `group` and `group + 8`, columns `2 pair` and `2 pair + 1`. The register index counts the elements
of one fragment first, then fragments along K (or N for C), then along M (or N for B), so the operands of one instruction are
adjacent.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Final

from tilec.ir.layouts.layout import Digit, Layout
from tilec.ir.types import DType, bf16
from tilec.mlir.builder import Builder
from tilec.mlir.types import SsaValue, f16, f32, floating, i8, i32, vector
from tilec.target.families import MMA_SYNC

FAMILY: Final = MMA_SYNC
M: Final = FAMILY.shape.rows
N: Final = FAMILY.shape.columns
K: Final = FAMILY.shape.depth
"""Depth of an instruction of 16-bit elements."""


@dataclass(frozen=True, slots=True)
class WarpGrid:
    """Number of warps along M (`rows`) and N (`columns`) of a tile; warp index = row index + `rows` * column index."""

    rows: int
    columns: int

    @property
    def count(self) -> int:
        return self.rows * self.columns


def depth_of(dtype: DType) -> int:
    """Depth of an instruction."""
    return FAMILY.shape.depth_of(dtype.bits)


def word_of(dtype: DType) -> int:
    """Elements of an operand in one 32-bit register."""
    return 32 // dtype.bits


def fits(rows: int, columns: int, depth: int, warps: WarpGrid, dtype: DType = bf16) -> bool:
    """Whether an (M, N, K) = (rows, columns, depth) product splits into whole instructions for each warp."""
    return rows % (M * warps.rows) == 0 and columns % (N * warps.columns) == 0 and depth % depth_of(dtype) == 0


def operand_a(rows: int, depth: int, warps: WarpGrid, dtype: DType = bf16) -> Layout:
    """Layout of a (rows, depth) A operand; the warps of one grid row have the same elements."""
    tiles, k, word = rows // (M * warps.rows), depth_of(dtype), word_of(dtype)
    registers = (Digit(word, 1, 1), Digit(2, 0, 8), Digit(2, 1, 4 * word), Digit(depth // k, 1, k), Digit(tiles, 0, M))
    lanes = (Digit(4, 1, word), Digit(8, 0, 1))
    return Layout(2, registers, lanes, (Digit(warps.rows, 0, M * tiles), Digit(warps.columns)))


def operand_b(depth: int, columns: int, warps: WarpGrid, dtype: DType = bf16) -> Layout:
    """Layout of a (depth, columns) B operand; the warps of one grid column have the same elements."""
    tiles, k, word = columns // (N * warps.columns), depth_of(dtype), word_of(dtype)
    registers = (Digit(word, 0, 1), Digit(2, 0, 4 * word), Digit(depth // k, 0, k), Digit(tiles, 1, N))
    lanes = (Digit(4, 0, word), Digit(8, 1, 1))
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


def multiply(
    out: Builder, a: list[SsaValue], b: list[SsaValue], c: list[SsaValue], dtype: DType, other: DType | None = None
) -> list[SsaValue]:
    """One instruction: four i32 of A, of `dtype`, two of B, of `other` if that differs, and four f32 or i32 of C; returns four
    of C's type."""
    if dtype.bits != 16:
        return _multiply_by_text(out, a, b, c, dtype, other or dtype)
    if dtype == bf16:
        name, operands = "bf16", [*a, *b]
    else:
        name, operands = "f32.f32", [out.bitcast(value, vector(2, f16)) for value in (*a, *b)]
    return out.instruction(f"mma.m16n8k16.row.col.{name}", [*operands, *c], [f32] * 4)


def _multiply_by_text(
    out: Builder, a: list[SsaValue], b: list[SsaValue], c: list[SsaValue], dtype: DType, other: DType
) -> list[SsaValue]:
    """`multiply` as inline PTX. It has side effects, so that LLVM does not move it to where only some threads of a warp are."""
    sums, letter = ("s32", "r") if dtype.is_integer else ("f32", "f")
    lists = [", ".join(f"${index}" for index in range(*ends)) for ends in ((0, 4), (4, 8), (8, 10), (10, 14))]
    shape = f"m{M}n{N}k{depth_of(dtype)}.row.col.{sums}.{dtype.matrix}.{other.matrix}.{sums}"
    text = f"mma.sync.aligned.{shape} {', '.join(f'{{{names}}}' for names in lists)};"
    constraints = ",".join([*[f"={letter}"] * 4, *["r"] * 6, *[letter] * 4])
    return out.inline_ptx(text, constraints, [*a, *b, *c], [i32 if dtype.is_integer else f32] * 4, side_effects=True)


def words(out: Builder, registers: list[SsaValue], dtype: DType) -> list[SsaValue]:
    """The i32 registers of an operand's fragments, from its elements. An f32 is rounded to tf32, to nearest, ties away from
    zero; the instruction by itself would ignore lower bits."""
    word = word_of(dtype)
    if word == 1:
        return [out.inline_ptx("cvt.rna.tf32.f32 $0, $1;", "=r,f", [value], [i32])[0] for value in registers]
    if word == 2:
        return [pack(out, low, high, dtype) for low, high in zip(registers[::2], registers[1::2], strict=True)]
    groups = [registers[first : first + word] for first in range(0, len(registers), word)]
    return [out.bitcast(out.packed(group, vector(word, i8)), i32) for group in groups]


def elements(out: Builder, word: SsaValue, dtype: DType) -> list[SsaValue]:
    """The elements in an i32."""
    count = word_of(dtype)
    if count == 1:
        return [out.bitcast(word, f32)]
    if count == 2:
        return unpack(out, word, dtype)
    group = out.bitcast(word, vector(count, i8))
    return [out.extract(group, index) for index in range(count)]


def pack(out: Builder, low: SsaValue, high: SsaValue, dtype: DType) -> SsaValue:
    """Two 16-bit floats as one i32."""
    return out.bitcast(out.packed([low, high], vector(2, floating(dtype.name))), i32)


def unpack(out: Builder, packed: SsaValue, dtype: DType) -> list[SsaValue]:
    """The two 16-bit floats of an i32."""
    pair = out.bitcast(packed, vector(2, floating(dtype.name)))
    return [out.extract(pair, i) for i in range(2)]


def batched(layout: Layout, products: int, warps: int) -> Layout:
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
