"""Where a thread finds the elements at `i ^ mask` of an axis: in which of its registers, or of which other thread.

In: a layout, an axis whose extent is a power of two, a mask. Out: the mask as parts of the register, lane and warp index. An
element's coordinate is a sum of digits; if each digit of the axis counts a power of two, its strides are powers of two too,
and each bit of the coordinate is a bit of one digit. Replicas and wrapped copies pass elements to their own kind:
digits of other axes do not change.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from tilec.ir.layouts.layout import Digit, Layout
from tilec.ir.types import DType

WORD_BYTES = 4
"""Threads pass elements to each other in words of this size."""


class Turn(NamedTuple):
    """A digit of the warp index that changes: `index // weight % extent` becomes its xor with `mask`."""

    weight: int
    extent: int
    mask: int


class Parts(NamedTuple):
    """`registers`: the bits of the mask that lie within a thread; `lanes`: the mask of the lane index; `warps`: the digits of
    the warp index that change."""

    registers: int
    lanes: int
    warps: tuple[Turn, ...]


def is_binary(layout: Layout, axis: int) -> bool:
    """Whether each bit of a coordinate on an axis is a bit of a register, lane or warp index."""
    digits = [digit for digit in (*layout.registers, *layout.lanes, *layout.warps) if digit.axis == axis]
    return all(digit.extent & (digit.extent - 1) == 0 for digit in digits)


@cache
def parts_of(layout: Layout, axis: int, mask: int) -> Parts:
    """The parts of a mask. The layout is binary on the axis."""
    assert is_binary(layout, axis), f"{layout} on axis {axis}"
    within = sum(turn.mask * digit.stride for digit, turn in _turns(layout.registers, axis, mask))
    lanes = sum(turn.mask * turn.weight for _, turn in _turns(layout.lanes, axis, mask))
    return Parts(within, lanes, tuple(turn for _, turn in _turns(layout.warps, axis, mask)))


def _turns(digits: tuple[Digit, ...], axis: int, mask: int) -> list[tuple[Digit, Turn]]:
    found: list[tuple[Digit, Turn]] = []
    weight = 1
    for digit in digits:
        part = mask // digit.stride % digit.extent if digit.axis == axis and digit.extent > 1 else 0
        if part:
            found.append((digit, Turn(weight, digit.extent, part)))
        weight *= digit.extent
    return found


def words(layout: Layout, dtype: DType) -> int:
    """Words in which a thread passes on all its elements."""
    return -(-layout.num_registers * dtype.bytes // WORD_BYTES)


def partners(layout: Layout, axis: int, mask: int) -> list[int]:
    """For each register, the register with the element at `i ^ mask`, in this thread or in its partner."""
    within = parts_of(layout, axis, mask).registers
    numbers = {layout.coordinates(register, 0, 0): register for register in range(layout.num_registers)}
    return [
        numbers[tuple(c ^ within if other == axis else c for other, c in enumerate(coordinates))] for coordinates in numbers
    ]
