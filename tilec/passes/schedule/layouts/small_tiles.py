"""Whether threads that would repeat each other's elements of a small tile get elements of their own.

In: a function whose accesses have their vectors, before its tiles have layouts. Out: a decision. A natural layout gives a
thread 8 elements side by side, so that a tile of fewer elements than eight for each thread leaves threads over, which compute
the same elements again: of 128 elements, 16 threads of 128 compute all. With fewer elements side by side (`spread`), every
thread computes its own. An access then moves fewer bytes at a time, with as many instructions or fewer.

That costs where a loop carries such a tile from one iteration to the next, as in a recurrence. A reduction along the axis has
more shuffles then, or a barrier, and so have conversions: tiles are spread only if these become no more, and if threads then
execute at most half of what they do for small tiles in loops, or if the tiles that live at once then take half as many
registers of a thread, where they would take most.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tilec.ir.clone import copy_of
from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.layouts.blocked_layouts import FIRST_DIGIT
from tilec.ir.layouts.coalescing import instructions
from tilec.ir.ops import AtomicScatter, AtomicUpdate, Butterfly, For, Load, MemoryOp, Mma, Store
from tilec.ir.ops.memory import adds_vectors
from tilec.ir.ops.staging_ops import GroupProduct
from tilec.ir.types import TileType
from tilec.passes.analysis.trips import has_constant_bounds, trips
from tilec.passes.schedule.layouts.narrow_rows import communication
from tilec.passes.schedule.register_need import FITTING_REGISTERS, registers

MUCH_LESS: Final = 2
UNKNOWN_TRIPS: Final = 16
"""Iterations of a loop whose bounds a launch decides, as this count takes them."""
LEAST_SAVED: Final = 64
"""Instructions of a thread that loops must save: a few of a whole kernel are not worth other layouts."""
MOST_REGISTERS: Final = 3 * FITTING_REGISTERS // 4
"""Registers for tiles from which a kernel is likely to spill: divisions and functions need some in addition."""
Spread = Callable[[Function, bool], None]
"""Sets all layouts of a function, with small tiles spread or not."""


def pays(function: Function, distribute: Spread) -> bool:
    """Whether small tiles of a function are to be spread. Products and butterflies fix layouts, and sums of vectors in memory
    need neighbors."""
    ops = list(function.body.walk())
    if any(isinstance(op, Mma | GroupProduct | Butterfly) for op in ops):
        return False
    if any(isinstance(op, AtomicUpdate | AtomicScatter) and adds_vectors(op) for op in ops):
        return False
    if not _saves(function, distribute, ops):
        return _relieves(function, distribute, ops)
    moved, shuffled = communication(function, lambda copy, _: distribute(copy, False), None)
    then_moved, then_shuffled = communication(function, lambda copy, _: distribute(copy, True), None)
    return then_moved <= moved and then_shuffled <= shuffled


def _saves(function: Function, distribute: Spread, ops: list[Op]) -> bool:
    """Whether a loop carries small tiles, and threads execute far less in loops if these are spread."""
    carried = [value for op in ops if isinstance(op, For) for value in op.results]
    if not any(_is_small(value, function.num_warps) for value in carried):
        return False
    before, after = (_work(function, distribute, is_spread) for is_spread in (False, True))
    return before - after >= LEAST_SAVED and MUCH_LESS * after <= before


def _relieves(function: Function, distribute: Spread, ops: list[Op]) -> bool:
    """Whether tiles take most of a thread's registers, and at most half of that if small ones are spread."""
    small = sum(_is_small(value, function.num_warps) for op in ops for value in op.results)
    if small * FIRST_DIGIT <= MOST_REGISTERS:
        return False
    before, after = copy_of(function), copy_of(function)
    distribute(before, False)
    distribute(after, True)
    return registers(before) > MOST_REGISTERS and MUCH_LESS * registers(after) <= registers(before)


def _is_small(value: Value, warps: int) -> bool:
    """Whether a tile has fewer elements than eight for each thread."""
    return isinstance(value.type, TileType) and 1 < value.tile.size < FIRST_DIGIT * 32 * warps


def _work(function: Function, distribute: Spread, is_spread: bool) -> int:
    """What a thread executes in loops for small tiles of a copy: one for each element, or for each vector of an access."""
    copy = copy_of(function)
    distribute(copy, is_spread)
    return _of_block(copy.body, function.num_warps, False)


def _of_block(block: Block, warps: int, is_repeated: bool) -> int:
    found = 0
    for op in block.ops:
        times, inside = 1, is_repeated
        if isinstance(op, For):
            times, inside = trips(op) if has_constant_bounds(op) else UNKNOWN_TRIPS, True
        found += times * sum(_of_block(region, warps, inside) for region in op.regions)
        found += _instructions(op, warps) if is_repeated else 0
    return found


def _instructions(op: Op, warps: int) -> int:
    if isinstance(op, Store):
        value = op.tile
    elif op.results and (op.elementwise or isinstance(op, MemoryOp)):
        value = op.results[0]
    else:
        return 0
    if value.layout is None or not _is_small(value, warps):
        return 0
    if isinstance(op, Load | Store):
        return instructions(value.layout, max(1, op.vector // value.tile.dtype.bytes))
    return value.layout.num_registers
