"""Schedules that no pass makes yet, as work: what the model says of them is a prediction about code that does not exist.

A product on tcgen05 is declared as the best kernels make it (`docs/decisions.md` has none of it yet): persistent blocks of one
tile at a time, a thread that copies, a thread that starts products of 128 rows, two accumulators in tensor memory, so that four
warps store one tile while the next is multiplied.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from tilec.cost_model.scalars import Array
from tilec.cost_model.work import Box, RoleWork, Work
from tilec.target.families import TCGEN05
from tilec.target.schedule import PINGPONG, Pipeline, Role, Schedule

PRODUCT_ROWS: Final = 128
"""M of one tcgen05 instruction of one block (PTX ISA, "tcgen05.mma")."""
SIZE: Final = 2
"""Bytes of an element."""
ACCUMULATOR_SIZE: Final = 4


@dataclass(frozen=True, slots=True)
class ProductSchedule:
    """A declared product `out = a @ b.T`: tile, depth of an iteration, stages, rows of tiles that are walked together."""

    rows: int
    columns: int
    depth: int
    stages: int
    group: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}x{self.depth}, {self.stages} stages, 2 accumulators, group {self.group}"


def product(schedule: ProductSchedule, dims: Mapping[str, int], at_once: int) -> Work:
    """The work of a declared product at M, N, K, on a card that runs `at_once` blocks."""
    m, n, k = dims["M"], dims["N"], dims["K"]
    rows, columns, trips = (-(-m // schedule.rows), -(-n // schedule.columns), -(-k // schedule.depth))
    blocks, launched = rows * columns, min(rows * columns, at_once)
    turns = -(-blocks // launched)
    tile = np.arange(launched)[:, None] + launched * np.arange(turns)[None, :]
    runs = tile < blocks
    row, column = _place(tile, rows, columns, schedule.group)
    size_a, size_b = SIZE * schedule.rows * schedule.depth, SIZE * schedule.columns * schedule.depth
    reads = math.ceil(schedule.rows / PRODUCT_ROWS) * size_b + size_a
    copier = RoleWork("producer", 1, trips=trips * runs)
    copier.add({"shared": float(size_a + size_b), "copies": 2.0}, trips * runs, inside=True)
    multiply_adds = float(schedule.rows * schedule.columns * schedule.depth)
    issuer = RoleWork("issuer", 1, trips=trips * runs)
    issuer.add({"tensor": multiply_adds, "shared": float(reads)}, trips * runs, inside=True)
    storer = RoleWork("epilogue", 4)
    outputs = schedule.rows * schedule.columns
    storer.add({"shared": 2.0 * SIZE * outputs, "alu": outputs / 2}, 1.0 * runs, inside=False)
    height, width = (
        np.clip(m - row * schedule.rows, 0, schedule.rows),
        np.clip(n - column * schedule.columns, 0, schedule.columns),
    )
    copier.boxes = [
        Box("a", False, row[..., None], SIZE * k * height * runs), Box("b", False, column[..., None], SIZE * k * width * runs),
    ]  # fmt: skip
    copier.copied = sum((box.bytes for box in copier.boxes), start=np.zeros((1, 1)))
    storer.boxes = [Box("out", True, np.stack([row, column], axis=-1), SIZE * height * width * runs)]
    held = schedule.stages * (size_a + size_b) + SIZE * outputs // 2
    return Work("product", (issuer, storer, copier), runs, blocks, launched, 6, held, _schedule(schedule.stages))


def _place(tile: Array, rows: int, columns: int, group: int) -> tuple[Array, Array]:
    """Row and column of a tile, walked `group` rows at a time (`kernels_src/matmul.py`)."""
    first = tile // (group * columns) * group
    height = np.clip(rows - first, 1, group)
    within = tile % (group * columns)
    return first + within % height, within // height


def _schedule(stages: int) -> Schedule:
    """Roles that alternate stand for the two accumulators: one is stored while the other is multiplied."""
    roles = (Role("consumer0", 4), Role("consumer1", 4), Role("producer", 4))
    return Schedule(roles, (Pipeline(stages, "tma", TCGEN05.name),), persistent=True, order=PINGPONG)
