"""The operands and the result of a product whose transpose an instruction computes (`fused_products`).

In: a matrix of the product, and the layout of the instruction's accumulator. Out: operations that make the instruction's matrix
of it, or the other way round, and move no element between threads: a transposition, and an order of the rows. A thread has
rows of the accumulator that lie apart. Because the order in which columns of a product are computed is free, they stand for
columns side by side, so that a thread loads what these follow from as vectors.
"""

from __future__ import annotations

from typing import Final

from tilec.ir.core import Value
from tilec.ir.layouts.blocked_layouts import reshaped, with_axes
from tilec.ir.layouts.layout import Digit, Layout
from tilec.ir.ops import Constant, Permute, Reshape
from tilec.ir.types import TileType
from tilec.passes.schedule.pipelining.staged_products import Emitter

TRANSPOSED: Final = (1, 0)
"""Axes of a matrix in the order of its transpose."""


def to_instruction(out: Emitter, value: Value, accumulator: Layout) -> Value:
    """The transpose of `value`, with its rows in the instruction's order; a constant is made anew."""
    if isinstance(value.owner, Constant):
        return out.add(Constant(value=value.owner.value), TileType(value.tile.dtype, value.tile.shape[::-1]))
    by_stride, by_thread = _rows(accumulator)
    transposed = _permuted(out, value, TRANSPOSED)
    parts = _reshaped(out, transposed, (*(digit.extent for digit in by_thread), transposed.tile.shape[1]))
    moved = _permuted(out, parts, (*map(by_thread.index, by_stride), len(by_thread)))
    return _reshaped(out, moved, transposed.tile.shape)


def from_instruction(out: Emitter, value: Value) -> Value:
    """The inverse of `to_instruction` for a result, whose layout is the accumulator's."""
    assert value.layout is not None
    by_stride, by_thread = _rows(value.layout)
    parts = _reshaped(out, value, (*(digit.extent for digit in by_stride), value.tile.shape[1]))
    moved = _permuted(out, parts, (*map(by_stride.index, by_thread), len(by_stride)))
    return _permuted(out, _reshaped(out, moved, value.tile.shape), TRANSPOSED)


def _rows(accumulator: Layout) -> tuple[list[Digit], list[Digit]]:
    """The digits of rows from the outermost to the innermost: as the instruction numbers rows; and so that those of a thread
    are innermost, and those of a warp around them."""
    registers, lanes, warps = (
        sorted((digit for digit in digits if digit.axis == 0 and digit.extent > 1), key=lambda digit: -digit.stride)
        for digits in (accumulator.registers, accumulator.lanes, accumulator.warps)
    )
    by_thread = [*warps, *lanes, *registers]
    return sorted(by_thread, key=lambda digit: -digit.stride), by_thread


def _permuted(out: Emitter, value: Value, axes: tuple[int, ...]) -> Value:
    shape = value.tile.shape
    result = out.add(Permute(operands=[value], axes=axes), TileType(value.tile.dtype, tuple(shape[axis] for axis in axes)))
    if value.layout is not None:
        result.layout = with_axes(value.layout, {old: new for new, old in enumerate(axes)}, len(axes))
    return result


def _reshaped(out: Emitter, value: Value, shape: tuple[int, ...]) -> Value:
    result = out.add(Reshape(operands=[value]), TileType(value.tile.dtype, shape))
    if value.layout is not None:
        result.layout = reshaped(value.layout, value.tile.shape, shape)
    return result
