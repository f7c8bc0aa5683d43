"""Blocked layouts, for tiles outside of tensor cores: contiguous vectors per thread, and their images under axis changes."""

from __future__ import annotations

from dataclasses import replace
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


FIRST_DIGIT: Final = 8
"""Consecutive elements of a thread on the last axis: 16 bytes of a 16-bit type."""


@cache
def natural(shape: tuple[int, ...], warps: int, vector: int = FIRST_DIGIT) -> Layout:
    """The natural layout of a tile: a vector per thread and lanes on the last axis, warps on the axis before it.

    `vector` elements per thread stay together on the last axis; axes of extent 1 do not count. The rest goes to registers.
    Lanes and warps divide an extent exactly, or exceed it (the layout then wraps) on the axes for which a thread then has
    the fewest elements. No axis wraps if a thread has few elements anyway or wrapping saves little.
    """
    exact = _spread(shape, warps, vector, frozenset())
    outermost = next((axis for axis, extent in enumerate(shape) if extent > 1), 0)
    not_powers_of_two = [axis for axis, extent in enumerate(shape) if extent & (extent - 1)]
    best, fewest = exact, exact.num_registers
    for count in range(1, len(not_powers_of_two) + 1):
        for axes in combinations(not_powers_of_two, count):
            few_registers, max_ratio = (FEW_REGISTERS, 3 / 4) if axes == (outermost,) else (FEW_INNER_REGISTERS, 1 / 2)
            layout = _spread(shape, warps, vector, frozenset(axes))
            if (
                exact.num_registers > few_registers
                and layout.num_registers < fewest
                and layout.num_registers <= max_ratio * exact.num_registers
            ):
                best, fewest = layout, layout.num_registers
    return best


def _spread(shape: tuple[int, ...], warps: int, vector: int, wrapping_axes: frozenset[int]) -> Layout:
    """`natural`, with the axes `wrapping_axes` wrapping and the others exact."""
    rank = len(shape)
    axes = [axis for axis in range(rank) if shape[axis] > 1]
    remaining = list(shape)
    covered = [1] * rank
    registers: list[Digit] = []
    lanes: list[Digit] = []
    warp_digits: list[Digit] = []

    def append_digit(digits: list[Digit], axis: int, extent: int) -> None:
        if extent > 1:
            digits.append(Digit(extent, axis, covered[axis]))
            covered[axis] *= extent
            remaining[axis] = -(-remaining[axis] // extent)

    def threads_on_axis(axis: int, unassigned: int) -> int:
        """Number of the `unassigned` threads assigned to an axis."""
        if axis not in wrapping_axes:
            return gcd(remaining[axis], unassigned)
        counts = [
            n
            for n in range(1, unassigned + 1)
            if unassigned % n == 0 and covered[axis] * n * -(-remaining[axis] // n) < 2 * shape[axis]
        ]
        return min(counts, key=lambda n: -(-remaining[axis] // n))

    if axes:
        append_digit(registers, axes[-1], gcd(remaining[axes[-1]], vector))
    for digits, unassigned, order in (
        (lanes, 32, [*reversed(axes)]),
        (warp_digits, warps, [*axes[-2:-1], *axes[-1:], *reversed(axes[:-2])]),
    ):
        for axis in order:
            extent = threads_on_axis(axis, unassigned)
            append_digit(digits, axis, extent)
            unassigned //= extent
        if unassigned > 1:
            digits.append(Digit(unassigned))
    for axis in reversed(axes):
        append_digit(registers, axis, remaining[axis])
    return Layout(rank, tuple(registers), tuple(lanes), tuple(warp_digits))


def spread(shape: tuple[int, ...], warps: int, vector: int = FIRST_DIGIT) -> Layout:
    """The natural layout of `vector` elements side by side, or of fewer, a power of two, of which a tile has enough for every
    thread, if a thread then has fewer elements in all."""
    number, most = 1, prod(shape) // (32 * warps)
    while 2 * number <= min(vector, most):
        number *= 2
    usual, fewer = natural(shape, warps, vector), natural(shape, warps, number)
    return fewer if fewer.num_registers < usual.num_registers else usual


@cache
def interleaved(layout: Layout, most: int) -> Layout:
    """The natural layout `layout` with at most `most` consecutive elements of a thread on the last axis. The lanes of that axis
    follow each other at that distance, and the thread's other elements where the lanes end: as many elements of every row and
    column are in registers, lanes and warps as before."""
    last = layout.rank - 1
    if not layout.registers or not layout.lanes:
        return layout
    (first, *registers), (lane, *lanes) = layout.registers, layout.lanes
    if (first.axis, first.stride) != (last, 1) or (lane.axis, lane.stride) != (last, first.extent) or first.extent <= most:
        return layout
    kept = gcd(first.extent, most)
    runs = (Digit(kept, last, 1),) if kept > 1 else ()
    moved = Digit(first.extent // kept, last, kept * lane.extent)
    return replace(layout, registers=(*runs, moved, *registers), lanes=(Digit(lane.extent, last, kept), *lanes))


def without_axis(layout: Layout, axis: int) -> Layout:
    """The layout of a reduction's result: digits of the axis are dropped from the registers and become replicas in lanes and
    warps."""

    def without(digit: Digit) -> Digit:
        if digit.axis is None or digit.axis < axis:
            return digit
        return Digit(digit.extent) if digit.axis == axis else Digit(digit.extent, digit.axis - 1, digit.stride)

    return Layout(
        layout.rank - 1,
        tuple(without(digit) for digit in layout.registers if digit.axis != axis),
        tuple(without(digit) for digit in layout.lanes),
        tuple(without(digit) for digit in layout.warps),
    )


def with_axes(layout: Layout, axes: dict[int, int], rank: int) -> Layout:
    """The same layout with axes renumbered, from old to new."""

    def renumbered(digits: tuple[Digit, ...]) -> tuple[Digit, ...]:
        return tuple(d if d.axis is None else Digit(d.extent, axes[d.axis], d.stride) for d in digits)

    return Layout(rank, renumbered(layout.registers), renumbered(layout.lanes), renumbered(layout.warps), layout.space)


BANKS_BYTES: Final = 128
"""Bytes after which shared memory's banks repeat."""

ROW_PADDING_BYTES: Final = 16
PADDED_BYTES: Final = 64 << 10
"""Larger matrices get no padding: they may fill all shared memory that a block has."""


def row_padding(tile: TileType) -> int:
    """Bytes of padding between rows of a matrix in shared memory, if its rows would all begin in the same bank."""
    pitch, size = tile.dtype.bytes_of(tile.shape[-1]), tile.dtype.bytes_of(tile.size)
    return ROW_PADDING_BYTES if tile.rank == 2 and pitch % BANKS_BYTES == 0 and size <= PADDED_BYTES else 0


def conversion_bytes(tile: TileType) -> int:
    """Largest amount of shared memory for a layout conversion of a matrix."""
    return tile.dtype.bytes_of(tile.size) + tile.shape[0] * row_padding(tile)


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
    wrapping_axes: dict[int, int] = {}  # axes that wrap inside the tile, and their numbers in the target
    for axis, extent in enumerate(source):
        if covered[axis] != extent and old[axis] * extent < prod(source):
            target_axes = [
                other for other, other_extent in enumerate(target) if (other_extent, new[other]) == (extent, old[axis])
            ]
            if not target_axes:
                return None
            wrapping_axes[axis] = target_axes[0]

    def split_digit(digit: Digit) -> list[Digit] | None:
        if digit.axis is None or digit.extent == 1:
            return [digit] if digit.extent > 1 else []
        if digit.axis in wrapping_axes:
            return [Digit(digit.extent, wrapping_axes[digit.axis], digit.stride)]
        step, remaining = digit.stride * old[digit.axis], digit.extent
        parts: list[Digit] = []
        for axis in reversed(range(len(target))):
            end = 2 * prod(target) if axis == outermost else new[axis] * target[axis]
            if remaining == 1 or step >= end:
                continue
            count = remaining if step * remaining <= end else end // step
            if step % new[axis] or remaining % count or (count < remaining and count * step != end):
                return None
            parts.append(Digit(count, axis, step // new[axis]))
            step, remaining = step * count, remaining // count
        return parts

    groups: list[tuple[Digit, ...]] = []
    for digits in (layout.registers, layout.lanes, layout.warps):
        pieces = [split_digit(digit) for digit in digits]
        if None in pieces:
            return None
        groups.append(tuple(part for parts in pieces if parts is not None for part in parts))
    registers, lanes, warps = groups
    return Layout(len(target), registers, lanes, warps, layout.space)


def hidden(layout: Layout, repeated: set[int]) -> Layout:
    """The layout of a tile that has `layout` after a broadcast along the axes `repeated`: the same threads, fewer registers,
    and digits of those axes replicated."""

    def replicas(digits: tuple[Digit, ...]) -> tuple[Digit, ...]:
        return tuple(Digit(d.extent) if d.axis in repeated else d for d in digits)

    kept = tuple(d for d in layout.registers if d.axis not in repeated)
    return Layout(layout.rank, kept, replicas(layout.lanes), replicas(layout.warps))


def vector_length(layout: Layout, limit: int) -> int:
    """Length of runs of neighbors on the last axis in consecutive registers, at most `limit`, a power of two."""
    if not layout.registers or layout.registers[0].axis != layout.rank - 1 or layout.registers[0].stride != 1:
        return 1
    length = 1
    while length * 2 <= limit and layout.registers[0].extent % (length * 2) == 0:
        length *= 2
    return length


def vectors_first(layout: Layout) -> Layout:
    """The same elements in each thread, with its runs along the last axis as the lowest register digit."""
    last, run = layout.rank - 1, 1
    others = list(layout.registers)
    while digit := next((d for d in others if d.axis == last and d.stride == run and d.extent > 1), None):
        others.remove(digit)
        run *= digit.extent
    return Layout(layout.rank, (Digit(run, last, 1), *others), layout.lanes, layout.warps, layout.space)
