"""Stores a matrix in the layout of an accumulator to shared memory in row-major order, four 8 x 8 matrices of 16-bit elements
at once (PTX ISA, `stmatrix`): that of `wgmma` or `mma.sync`, or one loaded by `tcgen05.ld`. Available on every target."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Final

from tilec.atoms import mma_sync, tcgen05, wgmma
from tilec.atoms.mma_sync import WarpGrid
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
    return _of_groups(layout, rows, columns, warps) is not None or _grid(layout, rows, columns, warps) is not None


def _of_groups(layout: Layout, rows: int, columns: int, warps: int) -> Layout | None:
    """The layout with all digits of an accumulator of `wgmma` or `tcgen05`; None if groups of four warps do not have it so."""
    known = (atom.accumulator(rows, columns, warps) for atom in (wgmma, tcgen05) if atom.fits(rows, columns, warps))
    return next((one for one in known if _plain(layout) == _plain(one)), None)


def _grid(layout: Layout, rows: int, columns: int, warps: int) -> WarpGrid | None:
    """The grid of warps that have a matrix as an accumulator of `mma.sync`; None if none has it so."""
    for across in (count for count in range(1, warps + 1) if warps % count == 0):
        grid = WarpGrid(warps // across, across)
        if mma_sync.fits(rows, columns, mma_sync.K, grid) and _plain(layout) == _plain(
            mma_sync.accumulator(rows, columns, grid)
        ):
            return grid
    return None


def _plain(layout: Layout) -> tuple[object, ...]:
    """The digits in the only form of them that has as few as possible."""
    return layout.space, *(_joined(digits) for digits in (layout.registers, layout.lanes, layout.warps))


def _joined(digits: tuple[Digit, ...]) -> tuple[Digit, ...]:
    """Digits without those that count nothing, and each that goes on where the one before it ends as one with it."""
    found: list[Digit] = []
    for digit in (one for one in digits if one.extent > 1):
        last = found[-1] if found else None
        if last is not None and last.axis == digit.axis and digit.stride == last.stride * last.extent:
            found[-1] = last._replace(extent=last.extent * digit.extent)
        else:
            found.append(digit)
    return tuple(found)


def store_rows(
    out: Builder,
    rows: SharedType,
    base: SsaValue,
    registers: list[SsaValue],
    layout: Layout,
    columns: int,
    first: int,
    lane: SsaValue,
    warp: SsaValue,
    warps: int,
) -> None:
    """Store columns `first` to `first + rows.width` of a matrix with `columns` columns at shared pointer `base`, which has the
    alignment of the swizzle of `rows`. `registers`: the thread's elements in `layout`, which `fits`. `lane` and `warp` (index
    among the `warps` that have the matrix) are i32."""
    of_groups = _of_groups(layout, rows.shape[0], columns, warps)
    if of_groups is not None:
        _store_of_groups(out, rows, base, registers, of_groups, first, lane, warp)
        return
    grid = _grid(layout, rows.shape[0], columns, warps)
    assert grid is not None
    tiles, own = rows.shape[0] // (2 * MATRIX * grid.rows), columns // grid.columns
    warp_row = warp if grid.columns == 1 else out.urem(warp, grid.rows)
    row = out.add(out.mul(warp_row, 2 * MATRIX * tiles), out.bit_and(lane, 2 * MATRIX - 1))
    origin = _Origin(rows, out.offset(base, out.mul(row, rows.pitch)), _phase(out, rows, lane), tiles, 2 * MATRIX)
    for across in range(grid.columns):
        begin, end = max(first, across * own), min(first + rows.width, (across + 1) * own)
        if begin >= end:
            continue
        is_here = out.compare("eq", out.udiv(warp, grid.rows), out.constant(across)) if grid.columns > 1 else None
        with out.where(is_here):
            column = begin
            while column < end:
                # Two neighbors of an even number differ in their lowest bit alone, whatever the swizzle.
                count = 2 if (column - first) // MATRIX % 2 == 0 and column + MATRIX < end else 1
                group = (column - across * own) // MATRIX
                _store_tiles(out, origin, column - first, registers, own // MATRIX, group, count)
                column += count * MATRIX


def _store_of_groups(
    out: Builder,
    rows: SharedType,
    base: SsaValue,
    registers: list[SsaValue],
    layout: Layout,
    first: int,
    lane: SsaValue,
    warp: SsaValue,
) -> None:
    """`store_rows` of groups of four warps, which share the rows, or the columns in runs of `groups.stride`."""
    group, warp_in_group = out.lshr(warp, 2), out.bit_and(warp, WARPS - 1)
    (own, groups), row_digits = layout.warps, [digit for digit in layout.registers[2:] if digit.axis == 0]
    row = out.mul(warp_in_group, own.stride)
    if groups.axis == 0:
        row = out.add(out.mul(group, groups.stride), row)
    row = out.add(row, out.bit_and(lane, 2 * MATRIX - 1))
    row_pointer = out.offset(base, out.mul(row, rows.pitch))
    phase, is_here = _phase(out, rows, lane), None
    if groups.axis == 1 and groups.extent > 1:
        if rows.width < groups.extent * groups.stride:  # all of these columns are those of one group
            owner = first // groups.stride % groups.extent
            is_here, first = out.compare("eq", group, out.constant(owner)), first - owner * groups.stride
        else:  # the bits of a group's first column are in none of the other columns
            phase = out.bit_xor(phase, out.mul(group, groups.stride // MATRIX))
    with out.where(is_here):
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


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where a thread's rows go: `pointer` is that of its row of the first tile, `phase` the swizzle there. Its `tiles` have
    `step` rows between them."""

    rows: SharedType
    pointer: SsaValue
    phase: SsaValue
    tiles: int
    step: int


def _phase(out: Builder, rows: SharedType, lane: SsaValue) -> SsaValue:
    """The swizzle of a lane's row: all parts of the row except the lane's are multiples of 8, and it repeats every 8 rows."""
    phase = out.bit_and(out.lshr(lane, rows.swizzle_shift), rows.swizzle_mask)
    return out.bit_xor(phase, out.lshr(lane, 4))  # lanes 16 and up address the right-hand matrices


def _store_tiles(
    out: Builder, origin: _Origin, column: int, registers: list[SsaValue], groups: int, group: int, count: int
) -> None:  # fmt: skip
    """Store `count` groups of 8 columns of each tile at `column` of the rows: from `group` on of the thread's `groups`."""
    address = out.offset(origin.pointer, out.shl(out.bit_xor(origin.phase, column // MATRIX), 4))
    for tile in range(origin.tiles):
        first_register = 4 * (groups * tile + group)
        pairs = [
            mma_sync.pack(out, registers[register], registers[register + 1], origin.rows.dtype)
            for register in range(first_register, first_register + 4 * count, 2)
        ]
        _stmatrix(out, out.offset(address, tile * origin.step * origin.rows.pitch), pairs)


def _stmatrix(out: Builder, address: SsaValue, pairs: list[SsaValue]) -> None:
    names = ", ".join(f"${1 + number}" for number in range(len(pairs)))
    text = f"stmatrix.sync.aligned.m8n8.x{len(pairs)}.shared.b16 [$0], {{{names}}};"
    out.inline_ptx(text, f"l,{','.join('r' * len(pairs))},~{{memory}}", [address, *pairs], side_effects=True)
