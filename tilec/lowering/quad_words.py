"""Loads of bytes of which adjacent threads have one each: every thread loads whole words, and takes its byte of each.

In: a load whose layout gives four adjacent lanes the four bytes of a word, and a lane one byte of each of several words that
follow each other. Out: instead of a load for each byte, one for 8 or 16 bytes, which the four lanes make together, and a shift
for each byte. `wgmma` has such layouts for operands that are computed from bytes, as of weights of four bits: a row's 32 bytes
for a step of 64 of the depth take two loads instead of eight. The memory takes as long for a narrow access as for a wide one.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from tilec.ir.layouts.layout import Layout
from tilec.ir.ops import Load
from tilec.ir.types import DType, i32
from tilec.lowering.boxes import Box
from tilec.lowering.context import Context, Path
from tilec.lowering.words import Words
from tilec.mlir.types import SsaValue, i8, i64

WORD: Final = 4
"""Bytes of a word, and lanes that share it."""
WIDTHS: Final = (16, 8)
"""Bytes of an access, the widest first."""


def runs(op: Load, layout: Layout) -> list[list[int]]:
    """The registers of each access, in the order of their words; empty if the load is none of such bytes."""
    dtype: DType = op.result.tile.dtype
    last, shape = op.result.tile.rank - 1, op.result.tile.shape
    lanes = [(digit.extent, digit.stride) for digit in layout.lanes if digit.axis == last and digit.extent > 1]
    others = [digit for digit in (*layout.registers, *layout.warps) if digit.axis == last and digit.extent > 1]
    is_shared = dtype.bytes == 1 and dtype.is_integer and lanes == [(WORD, 1)] and op.pad in (None, 0)
    if not is_shared or layout.wraps(shape) or any(digit.stride % WORD for digit in others):
        return []
    for width in WIDTHS:
        found: dict[tuple[int, ...], list[int]] = {}
        for register in range(layout.num_registers):
            *before, column = layout.coordinates(register, 0, 0)
            found.setdefault((*before, column // width), []).append(register)
        whole = all(_are_adjacent(layout, registers, width) for registers in found.values())
        fixed = all(digit.stride % width == 0 for digit in layout.warps if digit.axis == last and digit.extent > 1)
        if op.vector % width == 0 and whole and fixed:
            return list(found.values())
    return []


def _are_adjacent(layout: Layout, registers: list[int], width: int) -> bool:
    """Whether registers have one byte of each word of an access, the first in its first word."""
    columns = [layout.coordinates(register, 0, 0)[-1] % width for register in registers]
    return columns == list(range(0, width, WORD))


def load(context: Context, op: Load, box: Box, found: list[list[int]], path: Path) -> list[SsaValue]:
    """The elements of all registers. `found`: what `runs` returns."""
    last, count = op.result.tile.rank - 1, len(found[0])
    words = Words(context, i32, count)
    column = context.bit_and(box.coordinates.thread_origin[last], WORD - 1)
    back = context.sub(context.constant(0, i64), context.zext(column, i64))
    rows_in_bounds = [box.element_in_bounds(registers[0]) for registers in found] if op.pad is not None else []

    def access(registers: list[int]) -> list[SsaValue]:
        return words.load(context.offset(box.pointer(registers[0]), back), path)

    def load_box() -> list[SsaValue]:
        return [word for registers in found for word in access(registers)]

    def load_rows_in_bounds() -> list[SsaValue]:
        padding = [context.constant(0)] * count
        loaded: list[SsaValue] = []
        for registers, in_bounds in zip(found, rows_in_bounds, strict=True):
            loaded += context.choose_all(in_bounds, partial(access, registers), lambda: padding)
        return loaded

    loaded = load_box() if op.pad is None else context.choose_all(box.all_in_bounds(), load_box, load_rows_in_bounds)
    amount = context.mul(column, context.constant(8))
    elements: dict[int, SsaValue] = {}
    for register, word in zip((one for registers in found for one in registers), loaded, strict=True):
        elements[register] = context.trunc(context.integer("lshr", word, amount, proven=True), i8)
    return [elements[register] for register in range(len(loaded))]
