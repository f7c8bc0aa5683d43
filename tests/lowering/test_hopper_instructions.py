"""The instructions of sm_90a that move registers between warpgroups, and those that fill a stage by several tensor copies."""

from __future__ import annotations

import re

import pytest
from thread_machine import PtxThread

from tilec.atoms import tma
from tilec.atoms.registers import reallocate_registers
from tilec.ir.expr import sym
from tilec.ir.types import SharedType, TensorType, bf16
from tilec.mlir.builder import Builder
from tilec.mlir.types import SHARED, i64


def reallocated(count: int, current: int) -> list[tuple[str, str]]:
    out = Builder()
    reallocate_registers(out, count, current)
    return re.findall(r"setmaxnreg\.(\w+)\.sync\.aligned\.u32 (\d+);", "\n".join(out.lines))


def test_a_warpgroup_requests_more_registers_and_releases_unneeded_ones() -> None:
    assert reallocated(232, 168) == [("inc", "232")]
    assert reallocated(40, 168) == [("dec", "40")]
    assert reallocated(168, 168) == []


class Copies(PtxThread):
    """A thread whose tensor copies are recorded as (shared address, coordinates)."""

    def __init__(self) -> None:
        super().__init__()
        self.boxes: list[tuple[int, tuple[int, ...]]] = []

    def ptx(self, text: str, operands: list[int]) -> None:
        assert "cp.async.bulk.tensor" in text
        address, _, *coordinates, _ = operands
        self.boxes.append((address, tuple(reversed(coordinates))))


SHAPES = {"one copy": (64, 64), "two copies of rows": (512, 64), "two sub-tiles": (64, 128), "of both": (512, 256)}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(("sub_tiles", "gap"), [(1, 1), (2, 1), (2, 2), (4, 1), (4, 2)])
def test_the_copies_of_a_stage_load_each_part_from_its_own_coordinates(name: str, sub_tiles: int, gap: int) -> None:
    """A box begins at a row whose swizzle is none, so `SharedType.offset` of its first element is the address of the copy."""
    rows, columns = SHAPES[name]
    stage = SharedType(bf16, (rows, columns), 2, tma.swizzle_atoms_of(columns, 2))
    tensor = TensorType(bf16, tuple(map(sym, ["B", "H", "M", "K"])))
    assert tma.problem(tensor, stage, sub_tiles) is None
    box = tma.box_of(tensor, stage, -2, sub_tiles, gap)
    thread, start, address = Copies(), [3, 5, 24, 72], 4096
    coordinates = [thread.bind(coordinate) for coordinate in start]
    pointers = thread.bind(1 << 20, i64), thread.bind(address, SHARED), thread.bind(0, SHARED)
    tma.copy_stage(thread, pointers[0], box, -2, sub_tiles, gap, stage, pointers[1], coordinates, pointers[2])
    sub_tile_rows, width = rows // sub_tiles, box.extents[-1]
    together = sub_tiles if sub_tiles > tma.FEW and sub_tile_rows <= tma.MAX_BOX else 1
    assert [box.extents[-2 - gap], box.extents[-5 + gap]] == [together, 1]
    expected: set[tuple[int, tuple[int, ...]]] = set()
    for row in range(0, rows, together * box.extents[-2]):
        for column in range(0, columns, width):
            moved = [0, 0, row % sub_tile_rows, column]
            moved[2 - gap] = row // sub_tile_rows
            position = tuple(first + distance for first, distance in zip(start, moved, strict=True))
            expected.add((address + stage.offset(row, column), position))
    assert set(thread.boxes) == expected and len(thread.boxes) == len(expected)
