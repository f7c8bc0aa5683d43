"""Blocked layouts, for tiles outside of tensor cores: contiguous vectors per thread, and their images under axis changes."""

from __future__ import annotations

from functools import cache, lru_cache
from itertools import combinations
from math import gcd, prod
from typing import Final

from tilec.ir.layouts.layout import Digit, Layout
from tilec.ir.types import TileType

FEW_REGISTERS: Final = 8
"""Elements of a thread up to which the outermost axis does not wrap: copies cost a comparison at each store."""

FEW_INNER_REGISTERS: Final = 32
"""The same for other axes: a reshape that joins or splits an axis that wraps moves elements through shared memory."""


@cache
def natural(shape: tuple[int, ...], warps: int, vector: int = 8) -> Layout:
    """The natural layout of a tile: a vector per thread and lanes on the last axis, warps on the axis before it.

    `vector` elements per thread stay together on the last axis; axes of extent 1 do not count. The rest goes to registers.
    Lanes and warps divide an extent exactly, or exceed it (the layout then wraps) on the axes for which a thread then has
    the fewest elements. No axis wraps if a thread has few elements anyway or wrapping saves little.
    """
    exact = _spread(shape, warps, vector, frozenset())
    outermost = next((axis for axis, extent in enumerate(shape) if extent > 1), 0)
    odd = [axis for axis, extent in enumerate(shape) if extent & (extent - 1)]
    best, least = exact, exact.num_registers
    for count in range(1, len(odd) + 1):
        for axes in combinations(odd, count):
            few, gain = (FEW_REGISTERS, 3 / 4) if axes == (outermost,) else (FEW_INNER_REGISTERS, 1 / 2)
            layout = _spread(shape, warps, vector, frozenset(axes))
            if (
                exact.num_registers > few
                and layout.num_registers < least
                and layout.num_registers <= gain * exact.num_registers
            ):
                best, least = layout, layout.num_registers
    return best


def _spread(shape: tuple[int, ...], warps: int, vector: int, past: frozenset[int]) -> Layout:
    """`natural`, with the axes `past` wrapping and the others exact."""
    rank = len(shape)
    axes = [axis for axis in range(rank) if shape[axis] > 1]
    left = list(shape)
    done = [1] * rank
    registers: list[Digit] = []
    lanes: list[Digit] = []
    warp_digits: list[Digit] = []

    def take(digits: list[Digit], axis: int, extent: int) -> None:
        if extent > 1:
            digits.append(Digit(extent, axis, done[axis]))
            done[axis] *= extent
            left[axis] = -(-left[axis] // extent)

    def share(axis: int, free: int) -> int:
        """Number of the `free` threads assigned to an axis."""
        if axis not in past:
            return gcd(left[axis], free)
        counts = [n for n in range(1, free + 1) if free % n == 0 and done[axis] * n * -(-left[axis] // n) < 2 * shape[axis]]
        return min(counts, key=lambda n: -(-left[axis] // n))

    if axes:
        take(registers, axes[-1], gcd(left[axes[-1]], vector))
    for digits, free, order in (
        (lanes, 32, [*reversed(axes)]),
        (warp_digits, warps, [*axes[-2:-1], *axes[-1:], *reversed(axes[:-2])]),
    ):
        for axis in order:
            extent = share(axis, free)
            take(digits, axis, extent)
            free //= extent
        if free > 1:
            digits.append(Digit(free))
    for axis in reversed(axes):
        take(registers, axis, left[axis])
    return Layout(rank, tuple(registers), tuple(lanes), tuple(warp_digits))


def without_axis(layout: Layout, axis: int) -> Layout:
    """The layout of a reduction's result: digits of the axis are dropped from the registers and become replicas in lanes and
    warps."""

    def moved(digit: Digit) -> Digit:
        if digit.axis is None or digit.axis < axis:
            return digit
        return Digit(digit.extent) if digit.axis == axis else Digit(digit.extent, digit.axis - 1, digit.stride)

    return Layout(
        layout.rank - 1,
        tuple(moved(digit) for digit in layout.registers if digit.axis != axis),
        tuple(moved(digit) for digit in layout.lanes),
        tuple(moved(digit) for digit in layout.warps),
    )


def with_axes(layout: Layout, axes: dict[int, int], rank: int) -> Layout:
    """The same layout with axes renumbered, from old to new."""

    def moved(digits: tuple[Digit, ...]) -> tuple[Digit, ...]:
        return tuple(d if d.axis is None else Digit(d.extent, axes[d.axis], d.stride) for d in digits)

    return Layout(rank, moved(layout.registers), moved(layout.lanes), moved(layout.warps))


BANKS_BYTES: Final = 128
"""Bytes after which shared memory's banks repeat."""

ROW_PADDING_BYTES: Final = 16
PADDED_BYTES: Final = 64 << 10
"""Larger matrices get no padding: they may fill all shared memory that a block has."""


def row_padding(tile: TileType) -> int:
    """Bytes of padding between rows of a matrix in shared memory, if its rows would all begin in the same bank."""
    pitch, size = tile.shape[-1] * tile.dtype.bytes, tile.size * tile.dtype.bytes
    return ROW_PADDING_BYTES if tile.rank == 2 and pitch % BANKS_BYTES == 0 and size <= PADDED_BYTES else 0


def conversion_bytes(tile: TileType) -> int:
    """Largest amount of shared memory for a layout conversion of a matrix."""
    return tile.size * tile.dtype.bytes + tile.shape[0] * row_padding(tile)


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Distance in elements between neighboring coordinates of each axis, in row-major order."""
    steps = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        steps[axis] = steps[axis + 1] * shape[axis + 1]
    return tuple(steps)


@lru_cache(4096)
def reshaped(layout: Layout, source: tuple[int, ...], target: tuple[int, ...]) -> Layout | None:
    """The layout that leaves every element in its thread and register after a reshape from `source` to `target`. None if an
    axis of `target` ends inside a digit's steps.

    A digit moves the row-major position by its stride times the elements per coordinate. If the new axis ends before the
    digit does, the digit is split there into two, the lower part first, which count the same positions.

    If an axis of `source` wraps, positions past its end remain copies of the same elements in two cases: it is the outermost
    axis, whose positions pass the end of the whole tile, as along the outermost axis of `target`; or it is also an axis of
    `target`.
    """
    old, new = row_major(source), row_major(target)
    covered, outermost = layout.covered, next((axis for axis, extent in enumerate(target) if extent > 1), -1)
    kept: dict[int, int] = {}  # axes that wrap inside the tile, and their numbers in the target
    for axis, extent in enumerate(source):
        if covered[axis] != extent and old[axis] * extent < prod(source):
            same = [other for other, wanted in enumerate(target) if (wanted, new[other]) == (extent, old[axis])]
            if not same:
                return None
            kept[axis] = same[0]

    def cut(digit: Digit) -> list[Digit] | None:
        if digit.axis is None or digit.extent == 1:
            return [digit] if digit.extent > 1 else []
        if digit.axis in kept:
            return [Digit(digit.extent, kept[digit.axis], digit.stride)]
        step, left = digit.stride * old[digit.axis], digit.extent
        parts: list[Digit] = []
        for axis in reversed(range(len(target))):
            end = 2 * prod(target) if axis == outermost else new[axis] * target[axis]
            if left == 1 or step >= end:
                continue
            room = left if step * left <= end else end // step
            if step % new[axis] or left % room or (room < left and room * step != end):
                return None
            parts.append(Digit(room, axis, step // new[axis]))
            step, left = step * room, left // room
        return parts

    groups: list[tuple[Digit, ...]] = []
    for digits in (layout.registers, layout.lanes, layout.warps):
        made = [cut(digit) for digit in digits]
        if None in made:
            return None
        groups.append(tuple(part for parts in made if parts is not None for part in parts))
    return Layout(len(target), *groups)


def hidden(layout: Layout, repeated: set[int]) -> Layout:
    """The layout of a tile that has `layout` after a broadcast along the axes `repeated`: the same threads, fewer registers,
    and digits of those axes replicated."""

    def replicas(digits: tuple[Digit, ...]) -> tuple[Digit, ...]:
        return tuple(Digit(d.extent) if d.axis in repeated else d for d in digits)

    kept = tuple(d for d in layout.registers if d.axis not in repeated)
    return Layout(layout.rank, kept, replicas(layout.lanes), replicas(layout.warps))


def vector_length(layout: Layout, most: int) -> int:
    """Length of runs of neighbors on the last axis in consecutive registers, at most `most`, a power of two."""
    if not layout.registers or layout.registers[0].axis != layout.rank - 1 or layout.registers[0].stride != 1:
        return 1
    length = 1
    while length * 2 <= most and layout.registers[0].extent % (length * 2) == 0:
        length *= 2
    return length
