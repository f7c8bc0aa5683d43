"""How a warp's accesses of a tile in memory lie: the aligned pieces that its instructions touch.

In: a layout, bytes of an element, and how many elements one instruction of a thread moves at most. Rows of the tile, along its
last axis, begin at pieces and lie apart. The first warp stands for all.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from tilec.ir.layouts.blocked_layouts import vector_length
from tilec.ir.layouts.layout import Layout

SECTOR: Final = 32
"""Bytes that memory moves at least."""
LINE: Final = 128
"""Bytes of a cache line, of which an instruction passes one after the other."""


@cache
def pieces(layout: Layout, size: int, most: int, piece: int) -> int:
    """Pieces of `piece` bytes that the instructions of a warp touch, each as often as an instruction does."""
    width = vector_length(layout, most)
    step = min(size * width, piece)
    total = 0
    for register in range(0, layout.num_registers, width):
        touched: set[tuple[int, ...]] = set()
        for lane in range(32):
            *row, column = layout.coordinates(register, lane, 0)
            touched |= {(*row, byte // piece) for byte in range(column * size, (column + width) * size, step)}
        total += len(touched)
    return total


def instructions(layout: Layout, most: int) -> int:
    """Instructions of a thread for all its elements."""
    return layout.num_registers // vector_length(layout, most)
