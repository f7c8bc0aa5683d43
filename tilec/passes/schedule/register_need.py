"""How many registers a thread needs for the tiles of a function, estimated from layouts and lifetimes.

In: a function whose tiles have layouts. Out: the most registers that tiles take at one point of the program. An operation on
elements may write over an operand that ends there. Tiles of positions and constants take none: a thread computes them again
where it needs them. Operands that a product reads from shared memory are there a slice of the depth at a time.

The estimate leaves out addresses, predicates, and what instructions keep while they run; `choose` reserves registers for
these. It is a count for a choice between numbers of warps, no bound: ptxas may need fewer or more.
"""

from __future__ import annotations

from typing import Final

from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.ops import For, Mma
from tilec.ir.ops.staging_ops import SharedLoad
from tilec.ir.types import TileType
from tilec.passes.schedule.layouts.propagation import computed_anywhere
from tilec.target.families import MemorySpace

REGISTER_BYTES: Final = 4
FITTING_REGISTERS: Final = 248
"""Registers for tiles, as they are counted here, of the 255 of a thread. By that count, kernels with products that ptxas fits
have up to 246, and those that it spills 320 and more."""
FITTING_BY_WARPS: Final = 264
"""The same for kernels whose loops read the operands of `mma.sync` from stages, of which ptxas loads fragments one by one: a
product of 128 x 128 of 8-bit integers counts 264 on 4 warps, fits in 225 and takes 160 us on an H200, where 8 warps took 265.
Where threads load operands from global memory, one that counts 256 spills."""
FITTING_ONCE: Final = 312
"""The same for kernels none of whose products is in a loop: nothing is carried, and ptxas loads a part of an operand when a
product needs it. The distances of 64 points to 256 centroids count 304 on 4 warps and fit in 246: 113 us on an H200, where 8
warps took 324, whose reductions pass shared memory."""
MOST_WITH_ALL_REGISTERS: Final = 8
"""Most warps of a block of which each thread has all registers that an instruction can name: an SM has 64 K."""
SLICES: Final = 2
"""Slices of an operand's depth that a thread has at a time: one is read while the other is multiplied."""
SLICE_DEPTH: Final = 16


def registers(function: Function) -> int:
    """The most registers that the tiles of a thread take at one point."""
    return Lifetimes(function).most(function.body, frozenset())


def fitting(function: Function, by_warps: bool) -> int:
    """The most registers, as `registers` counts them, of which ptxas finds room for the tiles of a function with products;
    `by_warps`: all loops with products read stages, by `mma.sync`."""
    loops = [op for op in function.body.walk() if isinstance(op, For)]
    if not any(isinstance(op, Mma) for loop in loops for op in loop.regions[0].walk()):
        return FITTING_ONCE
    return FITTING_BY_WARPS if by_warps else FITTING_REGISTERS


class Lifetimes:
    """What counts a thread's registers for the tiles of a function."""

    def __init__(self, function: Function) -> None:
        self.free = computed_anywhere(function)
        self.sliced = _sliced(function)

    def of(self, value: Value) -> int:
        """Registers of a thread for a tile."""
        layout = value.layout
        if value in self.free or layout is None or layout.space is not MemorySpace.REGISTERS or not value.tile.rank:
            return 0
        size = value.tile.dtype.register_bytes(layout.num_registers)
        if value in self.sliced:
            size = min(size, size * SLICES * SLICE_DEPTH // self.sliced[value])
        return -(-size // REGISTER_BYTES)

    def sum(self, live: frozenset[Value]) -> int:
        return sum(map(self.of, live))

    def most(self, block: Block, after: frozenset[Value]) -> int:
        """The most registers while a block runs, of whose values and of others those in `after` are used later."""
        live, found = after, self.sum(after)
        for op in reversed(block.ops):
            passing = live.difference(op.results)
            for region in op.regions:
                needed = passing | _used(region) if isinstance(op, For) else passing
                found = max(found, self.most(region, needed))
            live = passing.union(_tiles(op.operands), *(_used(region) for region in op.regions))
            found = max(found, self.sum(live))
        return found


def _tiles(values: list[Value]) -> frozenset[Value]:
    return frozenset(value for value in values if isinstance(value.type, TileType))


def _used(region: Block) -> frozenset[Value]:
    """The tiles that a region uses and does not define: a loop holds them in all of its iterations."""
    defined = set(region.arguments) | {result for op in region.walk() for result in op.results}
    defined |= {argument for op in region.walk() for inner in op.regions for argument in inner.arguments}
    return frozenset(value for op in region.walk() for value in _tiles(op.operands) if value not in defined)


def _sliced(function: Function) -> dict[Value, int]:
    """Operands of products alone that are read from shared memory, with the depth of the product."""
    users: dict[Value, list[Op]] = {}
    for op in function.body.walk():
        for value in op.operands:
            users.setdefault(value, []).append(op)
    found: dict[Value, int] = {}
    for op in function.body.walk():
        if isinstance(op, Mma):
            depth = op.operands[0].tile.shape[-1]
            for value in op.operands[:2]:
                if isinstance(value.owner, SharedLoad) and all(isinstance(user, Mma) for user in users[value]):
                    found[value] = depth
    return found
