"""What the instructions of sm_90a accept, and the text of a wait for products."""

from __future__ import annotations

import re

import pytest

from tilec.atoms import mma_sync, stmatrix, tma, wgmma
from tilec.atoms.mma_sync import WarpGrid
from tilec.ir.expr import sym
from tilec.ir.layouts.layout import Layout
from tilec.ir.types import SharedType, TensorType, bf16
from tilec.mlir.builder import Builder
from tilec.mlir.types import SsaValue, f32
from tilec.target.families import MemorySpace

ROWS, COLUMNS, WARPS = 128, 64, 4
"""An accumulator of one warpgroup."""


def test_only_a_matrix_in_registers_is_stored_from_registers() -> None:
    layout = wgmma.accumulator(ROWS, COLUMNS, WARPS)
    assert stmatrix.fits(layout, ROWS, COLUMNS, WARPS)
    for space in MemorySpace:
        assert stmatrix.fits(layout.in_space(space), ROWS, COLUMNS, WARPS) == (space is MemorySpace.REGISTERS)


def test_a_matrix_with_its_columns_on_other_threads_is_not_stored() -> None:
    layout = wgmma.accumulator(ROWS, COLUMNS, WARPS)
    swapped = Layout(2, layout.registers, layout.lanes[::-1], layout.warps)
    assert not stmatrix.fits(swapped, ROWS, COLUMNS, WARPS)


@pytest.mark.parametrize("grid", [WarpGrid(4, 1), WarpGrid(2, 2), WarpGrid(1, 4), WarpGrid(8, 1)], ids=str)
@pytest.mark.parametrize("columns", [64, 96, 160])
def test_accumulators_of_warps_are_stored_whatever_their_grid(grid: WarpGrid, columns: int) -> None:
    layout = mma_sync.accumulator(ROWS, columns, grid)
    assert stmatrix.fits(layout, ROWS, columns, grid.count)
    assert not stmatrix.fits(layout, ROWS, columns, 2 * grid.count)
    assert not stmatrix.fits(Layout(2, layout.registers, layout.lanes[::-1], layout.warps), ROWS, columns, grid.count)
    swapped = Layout(2, layout.registers, layout.lanes, layout.warps[::-1])
    assert stmatrix.fits(swapped, ROWS, columns, grid.count) == (1 in (grid.rows, grid.columns))


# Copies


@pytest.mark.parametrize(("columns", "sub_tiles"), [(16, 1), (64, 1), (96, 1), (128, 2), (129, 1), (160, 1), (256, 4)])
def test_only_columns_that_fill_whole_spans_are_divided_into_sub_tiles(columns: int, sub_tiles: int) -> None:
    """A span is 128 bytes, which are 64 elements of 2 bytes."""
    assert tma.swizzle_atoms_of(columns, 2) == sub_tiles


@pytest.mark.parametrize("columns", [8, 16, 24, 32, 48, 64, 96, 128, 129, 160, 192])
def test_a_copy_fills_rows_of_a_swizzle_span_only(columns: int) -> None:
    stage = SharedType(bf16, (64, columns), 1, tma.swizzle_atoms_of(columns, 2))
    found = tma.problem(TensorType(bf16, (sym("M"), sym("K"))), stage)
    if columns in (16, 32, 64) or columns % 64 == 0:
        assert found is None
    else:
        assert found == f"rows of {2 * columns} bytes; a copy brings 32, 64 or 128"


# Waits


@pytest.mark.parametrize("count", [0, 1, 3])
def test_each_value_computed_before_a_wait_guards_a_sleep_before_it(count: int) -> None:
    """ptxas moves a wait over independent arithmetic, but not over a sleep."""
    out, accumulators = Builder(), [SsaValue(f"%a{i}", f32) for i in range(4)]
    results = wgmma.wait(out, accumulators, 1, [SsaValue(f"%b{i}", f32) for i in range(count)])
    assert [value.type for value in results] == [f32] * 4
    (line,) = [line for line in out.lines if "inline_asm" in line]
    before, wait, _ = line.partition("wgmma.wait_group.sync.aligned 1;")
    assert wait
    # Operands follow 4 results and 4 accumulators.
    compared = re.findall(r"setp\.eq\.b32 late, \$(\d+), 0x7f800001; @late nanosleep\.u32 0;", before)
    assert compared == [str(8 + i) for i in range(count)]
