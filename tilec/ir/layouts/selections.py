"""Conversions that a thread makes from its own registers, of which its place in the block says which.

In: two layouts of a tile. Out: for each register of the second, the registers of the first to choose from, by bits of the
thread index; None if a thread would need elements of others. A tile of which every thread has all, such as a load of one
element for each row, becomes one of which a warp has its rows; the result of a reduction, which all warps have, becomes a tile
that warps share. Both went through shared memory otherwise, with two barriers.
"""

from __future__ import annotations

from functools import cache, reduce
from itertools import product
from math import prod
from operator import add
from typing import Final, NamedTuple

from tilec.ir.layouts.layout import Layout
from tilec.target.families import MemorySpace

MOST_SELECTS: Final = 16
"""Instructions of a thread that are worth a round trip through shared memory."""
LEAST_WARPS: Final = 8
"""Warps from which barriers cost more than that."""
LANE_BITS: Final = 5


class Selection(NamedTuple):
    """`bits`: the bits of the thread index that decide. `registers`: for each combination of their values, in the order of a
    binary number whose highest digit is the first bit, the source's register for each register of the target."""

    bits: tuple[int, ...]
    registers: tuple[tuple[int, ...], ...]


@cache
def selection(source: Layout, target: Layout, shape: tuple[int, ...]) -> Selection | None:
    """How each thread chooses its elements in `target` from those that it has in `source`; None if it lacks some, if more than
    `MOST_SELECTS` instructions would choose, if none need, and in blocks of fewer than `LEAST_WARPS` warps."""
    spaces = {source.space, target.space}
    if spaces != {MemorySpace.REGISTERS} or source.wraps(shape) or target.wraps(shape):
        return None
    extents = [digit.extent for one in (source, target) for digit in (*one.lanes, *one.warps)]
    if any(extent & (extent - 1) for extent in extents):
        return None  # a step of a digit would be no sum of bits
    threads = 32 * prod(digit.extent for digit in source.warps)
    if threads < 32 * LEAST_WARPS:
        return None
    moved = {bit: _difference(source, target, bit) for bit in range(threads.bit_length() - 1)}
    bits = tuple(bit for bit, difference in moved.items() if any(difference))
    if not bits or ((1 << len(bits)) - 1) * target.num_registers > MOST_SELECTS:
        return None
    register_at = {source.coordinates(register, 0, 0): register for register in range(source.num_registers)}
    wanted = [target.coordinates(register, 0, 0) for register in range(target.num_registers)]
    found: list[tuple[int, ...]] = []
    for values in product((0, 1), repeat=len(bits)):
        shifts = [moved[bit] for bit, value in zip(bits, values, strict=True) if value]
        chosen = [register_at.get(reduce(_sum, shifts, start)) for start in wanted]
        if None in chosen:
            return None
        found.append(tuple(register for register in chosen if register is not None))
    return Selection(bits, tuple(found))


def _difference(source: Layout, target: Layout, bit: int) -> tuple[int, ...]:
    """How much further the element of a register is in the target than in the source, for threads whose index has the bit."""
    lane, warp = (1 << bit, 0) if bit < LANE_BITS else (0, 1 << bit - LANE_BITS)
    positions = (one.coordinates(0, lane, warp) for one in (target, source))
    return tuple(there - here for there, here in zip(*positions, strict=True))


def _sum(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(add, left, right))
