"""Where elements lie in tensor memory: the results of an mma, A, scale factors, and the registers of ld and st.

Source: PTX ISA, "Data path layout organization", "Scale factor A/B layout", "tcgen05.ld", and the layouts that CUTLASS uses
where figures are the only text. A row here is a lane of tensor memory, 128 for each block; the second block of a pair has rows
128 to 255. Layouts E, F, G and B and the scale factors beyond 128 rows were not compared with a chip.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.int64]
Rect = tuple[int, int, int, int]
"""First row, end of rows, first column, end of columns."""
LANES: Final = 128
COLUMNS: Final = 512


@cache
def result_cells(rows: int, columns: int, pair: bool, weight: bool) -> tuple[Index, Index]:
    """Row and column of each element of D, [M, N], relative to its address."""
    m, n = np.arange(rows)[:, None], np.arange(columns)[None, :]
    if pair and rows == 256:  # layout A
        lane, column = m, n
    elif pair:  # layout B
        lane, column = m // 64 * LANES + m % 64 + 64 * (n >= columns // 2), n % (columns // 2)
    elif rows == 128:  # layout D
        lane, column = m, n
    elif not weight:  # layout F
        lane, column = 32 * (m // 16) + m % 16, n
    elif rows == 64:  # layout E
        lane, column = m + 64 * (n >= columns // 2), n % (columns // 2)
    else:  # layout G
        lane, column = m + 32 * (n // (columns // 4)), n % (columns // 4)
    lane, column = np.broadcast_arrays(lane, column)
    return np.ascontiguousarray(lane), np.ascontiguousarray(column)


@cache
def left_lanes(rows: int, pair: bool) -> tuple[Index, ...]:
    """The lanes that hold row m of A in tensor memory, [M] for each copy."""
    m = np.arange(rows)
    if pair and rows == 128:  # layout B: both halves of each block
        lane = m // 64 * LANES + m % 64
        return lane, lane + 64
    if rows == 64:
        return (32 * (m // 16) + m % 16,)
    return (m,)


@cache
def scale_cells(rows: int) -> tuple[Index, Index]:
    """Lane in its quarter and column of the 32-bit word with four scale factors of each row, [rows]."""
    r = np.arange(rows)
    return r % 32, r // 32


def rects_of(lanes: Index, first: int, end: int) -> tuple[Rect, ...]:
    """The rectangles that these lanes and the columns `first` to `end` make."""
    rows = np.unique(lanes)
    runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1) if len(rows) else []
    return tuple((int(run[0]), int(run[-1]) + 1, first, end) for run in runs)


@cache
def result_rects(rows: int, columns: int, pair: bool, weight: bool) -> tuple[Rect, ...]:
    """The rectangles that all of D covers, relative to its address."""
    lanes, used = result_cells(rows, columns, pair, weight)
    return rects_of(lanes, 0, int(used.max()) + 1)


SHAPES: Final[dict[str, tuple[int, int, int]]] = {
    "32x32b": (32, 1, 128), "16x64b": (16, 1, 128), "16x128b": (16, 2, 64), "16x256b": (16, 4, 32), "16x32bx2": (16, 1, 128),
}  # fmt: skip
"""Lanes, registers at .x1, and the greatest repetition of each shape of ld and st."""


@cache
def register_cells(shape: str, times: int, packed: bool, offset: int = 0) -> tuple[Index, Index]:
    """Lane and column, relative to the address, of each register of ld and st: [32 threads, registers]. With `packed` (.pack
    and .unpack) it is the first of two adjacent columns. `offset`: the immediate of 16x32bx2."""
    t, j = np.arange(32)[:, None], np.arange(SHAPES[shape][1] * times)[None, :]
    scale = 2 if packed else 1
    shift: Index = np.zeros((32, 1), np.int64)
    if shape == "32x32b":
        lane, column = t, j
    elif shape == "16x64b":
        lane, column = t // 4 + 8 * (t % 2), 2 * j + t // 2 % 2
    elif shape == "16x128b":
        lane, column = t // 4 + 8 * (j % 2), 4 * (j // 2) + t % 4
    elif shape == "16x256b":
        lane, column = t // 4 + 8 * (j // 2 % 2), 8 * (j // 4) + 2 * (t % 4) + j % 2
    else:
        lane, column, shift = t % 16, j, offset * (t // 16)
    lane, column = np.broadcast_arrays(lane, scale * column + shift)
    return np.ascontiguousarray(lane), np.ascontiguousarray(column)
