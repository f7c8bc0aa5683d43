"""How many consecutive elements of a row a thread has, where rows are not whole vectors.

In: a function whose accesses have their vectors, before its tiles have layouts. Out: that number, or None if natural layouts,
16 bytes of a thread side by side, are as good. A narrow access of such a layout makes a warp touch as many sectors as it has
lanes, and a line for each eight of them; with fewer consecutive elements, adjacent lanes access adjacent memory.

The chosen number needs least of memory by this count: an instruction costs one, one more for each cache line that a
warp touches, and one for as many sectors as a line has. It must need much less, with what it adds in conversions through
shared memory, and no more shuffles than natural layouts: a kernel whose author sums 8 neighbors in a thread first keeps them
there. A tile that is only transposed passes through shared memory anyway: its load has adjacent vectors (`load_adjacent`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tilec.ir.clone import copy_of
from tilec.ir.core import Function, Op, Value
from tilec.ir.layouts.blocked_layouts import FIRST_DIGIT, interleaved, natural
from tilec.ir.layouts.coalescing import LINE, SECTOR, instructions, pieces
from tilec.ir.layouts.conversion_scratch import conversion_bytes
from tilec.ir.ops import AtomicScatter, AtomicUpdate, Butterfly, Cast, Load, MemoryOp, Mma, Permute, Reduce, Store
from tilec.ir.ops.memory import adds_vectors
from tilec.ir.ops.staging_ops import GroupProduct
from tilec.passes.analysis.trips import repeats
from tilec.passes.schedule.layouts import conversions
from tilec.target.schedule import VECTOR

MUCH_LESS: Final = 2
BARRIERS: Final = 32
"""What the barriers of a conversion cost in the same count."""
MOST_ELEMENTS: Final = 256
"""Elements of a thread up to which instructions are counted: more do not fit registers."""
Distribute = Callable[[Function, int | None], None]
"""Sets all layouts of a function, with so many consecutive elements."""


def consecutive(function: Function, distribute: Distribute) -> int | None:
    """The number for a function. In a kernel that adds f32 to memory and accesses nothing narrower, a vector of them. None in
    kernels whose layouts products or butterflies decide."""
    ops = list(function.body.walk())
    if any(isinstance(op, Mma | GroupProduct | Butterfly) for op in ops):
        return None
    moved = [op for op in ops if isinstance(op, MemoryOp)]
    adds = any(isinstance(op, AtomicUpdate | AtomicScatter) and adds_vectors(op) for op in moved)
    if adds and all(op.tensor.tensor.dtype.bits >= 32 for op in moved):
        return VECTOR // 4
    boxes = [op for op in moved if isinstance(op, Load | Store) and op.tile.tile.rank]
    if any(op.tile.tile.size > MOST_ELEMENTS * 32 * function.num_warps for op in boxes):
        return None
    repeated = repeats(function.body)
    costs = {
        number: sum(repeated[op] * _cost(op, function.num_warps, number) for op in boxes) for number in (FIRST_DIGIT, 4, 2, 1)
    }
    best = min(costs, key=lambda number: costs[number])
    if MUCH_LESS * costs[best] > costs[FIRST_DIGIT]:
        return None
    (before, shuffled), (after, more) = (communication(function, distribute, number) for number in (None, best))
    pays = MUCH_LESS * (costs[best] + max(0, after - before)) <= costs[FIRST_DIGIT]
    return best if pays and more <= shuffled else None


def _cost(op: Load | Store, warps: int, number: int) -> int:
    size = op.tile.tile.dtype.bytes
    layout, most = interleaved(natural(op.tile.tile.shape, warps), number), op.vector // size
    lines, sectors = (pieces(layout, size, most, piece) for piece in (LINE, SECTOR))
    return instructions(layout, most) + lines + sectors * SECTOR // LINE


def communication(function: Function, distribute: Distribute, number: int | None) -> tuple[int, int]:
    """What conversions through shared memory cost in the same count, a store and a load for each element and `BARRIERS`, and
    the shuffles of a thread, with so many consecutive elements."""
    copy = copy_of(function)
    distribute(copy, number)
    conversions.convert(copy)
    converted, shuffled = 0, 0
    for op, times in repeats(copy.body).items():
        if conversion_bytes(op, 32 * copy.num_warps):
            layout = op.operands[0].layout
            converted += times * (BARRIERS + 2 * (layout.num_registers if layout is not None else 1))
        if isinstance(op, Reduce) and op.operands[0].layout is not None:
            results = op.result.layout.num_registers if op.result.layout is not None else 1
            steps = [digit.extent.bit_length() - 1 for digit in op.operands[0].layout.lanes if digit.axis == op.axis]
            shuffled += times * results * sum(steps)
    return converted, shuffled


def load_adjacent(function: Function) -> None:
    """Give loads whose elements are only permuted and stored the layout of adjacent vectors, if that touches half as many
    sectors as their natural one. The elements pass between threads in any case."""
    users: dict[Value, list[Op]] = {}
    for op in function.body.walk():
        for value in op.operands:
            users.setdefault(value, []).append(op)
    for op in function.body.walk():
        if isinstance(op, Load) and op.result.tile.rank and op.result.layout is None and _is_copied(op.result, users):
            shape, size = op.result.tile.shape, op.result.tile.dtype.bytes
            most = op.vector // size
            usual, adjacent = (natural(shape, function.num_warps, number) for number in (FIRST_DIGIT, most))
            if pieces(usual, size, most, SECTOR) >= MUCH_LESS * pieces(adjacent, size, most, SECTOR):
                op.result.layout = adjacent


def _is_copied(value: Value, users: dict[Value, list[Op]], is_permuted: bool = False) -> bool:
    """Whether a tile is stored with its last axis elsewhere, and no more."""
    (user, *others) = users.get(value, [None])
    if others or user is None:
        return False
    if isinstance(user, Store):
        return is_permuted and user.tile is value
    moves = isinstance(user, Permute) and user.axes[-1] != len(user.axes) - 1
    return isinstance(user, Cast | Permute) and _is_copied(user.result, users, is_permuted or moves)
