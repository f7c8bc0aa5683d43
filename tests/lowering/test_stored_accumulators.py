"""Accumulators stored by `stmatrix`, by brute force: every element of every warp and lane lands where a row-major matrix with
the swizzle of its rows has it."""

from __future__ import annotations

import re

import pytest
from thread_machine import PtxThread, Thread

from tests import campaign
from tilec.atoms import mma_sync, stmatrix, tcgen05, wgmma
from tilec.ir.layouts.layout import Layout
from tilec.ir.types import SharedType, bf16
from tilec.mlir.builder import Builder
from tilec.mlir.types import SHARED, SsaValue
from tilec.passes.schedule.layouts.tensor_stores import parts_of

ATOMS = {"wgmma": wgmma, "tcgen05": tcgen05}
CASES = [
    (name, rows, columns, warps)
    for name, atom in ATOMS.items()
    for rows in (64, 128, 256)
    for columns in (32, 64, 80, 96, 128, 160, 192, 256)
    for warps in (4, 8)
    if atom.fits(rows, columns, warps) and rows * columns <= 128 * 256
]
CASES.sort(key=lambda case: case[1] * case[2])  # the default run has small ones


class Stores(PtxThread):
    """A thread whose stores are recorded as (address, pairs of elements)."""

    def __init__(self) -> None:
        super().__init__()
        self.stored: list[tuple[int, list[int]]] = []

    def ptx(self, text: str, operands: list[int]) -> None:
        assert re.match(r"stmatrix\.sync\.aligned\.m8n8\.x4\.shared\.b16 ", text)
        address, *pairs = operands
        self.stored.append((address, pairs))


def pair(out: Builder, low: SsaValue, high: SsaValue, _: object) -> SsaValue:
    """Two elements, named by numbers below 2^20, in one value."""
    assert isinstance(out, Thread)
    return out.bind(out.values[low.name] | out.values[high.name] << 20)


def thread_stores(
    rows: SharedType, layout: Layout, columns: int, first: int, lane: int, warp: int, warps: int
) -> list[tuple[int, list[int]]]:
    """The stores of one thread, whose elements are named by row and column."""
    machine = Stores()
    registers: list[SsaValue] = []
    for number in range(layout.num_registers):
        row, column = layout.coordinates(number, lane, warp)
        registers.append(machine.bind(row << 9 | column))
    base = machine.bind(1 << 20, SHARED)
    stmatrix.store_rows(machine, rows, base, registers, layout, columns, first, machine.bind(lane), machine.bind(warp), warps)
    return machine.stored


@pytest.mark.parametrize(
    ("name", "rows", "columns", "warps"),
    campaign.one_of_each(CASES, lambda case: (case[0], case[3]), lambda case: (case[0], case[2] % 64)),
)
def test_every_element_is_stored_where_its_row_has_it(
    name: str, rows: int, columns: int, warps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mma_sync, "pack", pair)
    layout = ATOMS[name].accumulator(rows, columns, warps)
    assert stmatrix.fits(layout, rows, columns, warps)
    parts = parts_of(columns)
    if rows * columns > 128 * 160:  # further parts of one width repeat the first
        parts = tuple({width: (first, width) for first, width in parts}.values())
    for first, width in parts:
        shared = SharedType(bf16, (rows, width), 1)
        memory: dict[int, int] = {}
        for warp in range(warps):
            lanes = [thread_stores(shared, layout, columns, first, lane, warp, warps) for lane in range(32)]
            for number in range(len(lanes[0])):
                for thread in range(32):
                    for matrix, value in enumerate(lanes[thread][number][1]):
                        address = lanes[8 * matrix + thread // 4][number][0] + 4 * (thread % 4) - (1 << 20)
                        for location, one in ((address, value & 0xFFFFF), (address + 2, value >> 20)):
                            assert location not in memory, "two stores of one element"
                            memory[location] = one
        expected = {shared.offset(row, column): row << 9 | first + column for row in range(rows) for column in range(width)}
        assert memory == expected


def test_other_layouts_are_not_stored() -> None:
    layout = tcgen05.accumulator(128, 64, 8)
    assert stmatrix.fits(layout, 128, 64, 8)
    assert not stmatrix.fits(layout, 128, 64, 4) and not stmatrix.fits(layout, 256, 64, 8)
    swapped = Layout(2, layout.registers, layout.lanes, layout.warps[::-1])
    assert not stmatrix.fits(swapped, 128, 64, 8)
