"""How a tile is distributed over the threads of a block: a mixed-radix, strided map from (register, lane, warp) to coordinates.

Each hardware index is split into digits, least significant first. A digit of `extent` e moves the coordinate on `axis` by
`stride` per step; if `axis` is None it moves nothing, and the element is replicated. Extents need not be powers of two, so a
row of 2560 elements fits 320 threads exactly. The form covers blocked layouts, mma fragments and replication alike, after
the layouts of CuTe (https://docs.nvidia.com/cutlass/latest/media/docs/cpp/cute/01_layout.html).

Digits may count past the end of an axis, to less than twice its extent, so that a row of 1000 elements is spread over 128
threads of 8. A position past the end *wraps*: it stands for the position `extent` before it, and the registers there are
copies. Every register thus contains an element of the tile, so a fact proven for all elements is true of all registers. Only
three kinds of operations distinguish copies: those that write memory (one thread writes each element), those that count
elements (sums), and those that use an element's position (`tilec.lowering.coordinates`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import NamedTuple

from tilec.target.families import MemorySpace


class Digit(NamedTuple):
    """One digit of a hardware index. A tuple: made, compared and hashed in a third of the time of a dataclass."""

    extent: int
    axis: int | None = None
    stride: int = 0

    def __str__(self) -> str:
        return f"{self.extent}" if self.axis is None else f"{self.extent}@{self.axis}*{self.stride}"


@dataclass(frozen=True, slots=True)
class Layout:
    """Digits of the register, lane and warp index. Lane extents multiply to 32, warp extents to the kernel's warps. `space`:
    where the elements are. In a memory that is not registers, a register index counts elements that a thread can address."""

    rank: int
    registers: tuple[Digit, ...]
    lanes: tuple[Digit, ...]
    warps: tuple[Digit, ...]
    space: MemorySpace = MemorySpace.REGISTERS

    @property
    def num_registers(self) -> int:
        """Elements per thread."""
        return prod(d.extent for d in self.registers)

    @property
    def num_values(self) -> int:
        """Values that stand for a thread's elements: its registers, or one address in another memory space."""
        return self.num_registers if self.space is MemorySpace.REGISTERS else 1

    def in_space(self, space: MemorySpace) -> Layout:
        """The same elements for each thread in another memory space."""
        return self if space is self.space else replace(self, space=space)

    def coordinates(self, register: int, lane: int, warp: int) -> tuple[int, ...]:
        """Tile coordinates of one element, before wrapping."""
        out = [0] * self.rank
        for digits, index in ((self.registers, register), (self.lanes, lane), (self.warps, warp)):
            for digit in digits:
                index, step = divmod(index, digit.extent)
                if digit.axis is not None:
                    out[digit.axis] += step * digit.stride
        return tuple(out)

    @lru_cache(4096)  # noqa: B019 values, not objects: asked after each pass of each
    def problem(self, shape: tuple[int, ...], warps: int) -> str | None:
        """Why this is no layout of a tile of `shape` on `warps` warps; None if it is one.

        The digits of one axis, ordered by stride, must enumerate its coordinates like the digits of a mixed-radix number, at
        least to the end of the axis and to less than twice its extent.
        """
        if self.rank != len(shape):
            return f"its rank is {self.rank}"
        if prod(digit.extent for digit in self.lanes) != 32:
            return "the lanes are not 32"
        if prod(digit.extent for digit in self.warps) != warps:
            return f"the warps are not {warps}"
        covered = [1] * self.rank
        for digit in sorted((*self.registers, *self.lanes, *self.warps), key=lambda digit: digit.stride):
            if digit.extent < 1:
                return f"the digit {digit} counts nothing"
            if digit.axis is None or digit.extent == 1:
                continue
            if not 0 <= digit.axis < self.rank:
                return f"there is no axis {digit.axis}"
            if digit.stride != covered[digit.axis]:
                return f"the digit {digit} does not go on where {covered[digit.axis]} elements end"
            covered[digit.axis] *= digit.extent
        if any(not extent <= count < 2 * extent for count, extent in zip(covered, shape, strict=True)):
            return f"it holds {covered}"
        return None

    @property
    def covered(self) -> tuple[int, ...]:
        """Positions that the digits of each axis count."""
        out = [1] * self.rank
        for digit in (*self.registers, *self.lanes, *self.warps):
            if digit.axis is not None:
                out[digit.axis] *= digit.extent
        return tuple(out)

    @property
    def is_replicated(self) -> bool:
        """Whether several threads have the same elements, apart from positions that wrap."""
        return not self.lanes or any(digit.axis is None and digit.extent > 1 for digit in (*self.lanes, *self.warps))

    def wraps(self, shape: tuple[int, ...]) -> bool:
        """Whether some positions lie past the end of a tile of `shape`, so that some elements have two copies."""
        return self.covered != shape

    def __str__(self) -> str:
        groups = (self.registers, self.lanes, self.warps)
        space = "" if self.space is MemorySpace.REGISTERS else f" in {self.space.value}"
        return "<" + " | ".join(" ".join(map(str, group)) or "1" for group in groups) + ">" + space


def register_map(source: Layout, target: Layout, shift: tuple[int, ...] = ()) -> tuple[int, ...] | None:
    """For each register of `target`, the register of the same thread in `source` that has its element; None if a thread would
    need an element of another thread, or of another memory space. It lets an accumulator be operand A of the next product.
    `shift` is the position in the source's tile at which the target's begins.
    """
    if source.space is not target.space:
        return None
    # A coordinate is the sum of a register's, a lane's and a warp's part. So lanes and warps can be checked one by one, and the
    # difference between source and target must be the same for all threads: otherwise registers would be indexed at run time.
    lanes = ((lane, 0) for lane in range(prod(digit.extent for digit in source.lanes)))
    warps = ((0, warp) for warp in range(prod(digit.extent for digit in source.warps)))
    differences: set[tuple[int, ...]] = set()
    for lane, warp in (*lanes, *warps):
        source_origin, target_origin = source.coordinates(0, lane, warp), target.coordinates(0, lane, warp)
        differences.add(tuple(b - a for a, b in zip(source_origin, target_origin, strict=True)))
    if len(differences) != 1:
        return None
    (difference,) = differences
    source_shift = [d + s for d, s in zip(difference, shift or [0] * source.rank, strict=True)]
    source_registers = {source.coordinates(register, 0, 0): register for register in range(source.num_registers)}
    target_coordinates = [target.coordinates(register, 0, 0) for register in range(target.num_registers)]
    registers = [
        source_registers.get(tuple(c + m for c, m in zip(coordinates, source_shift, strict=True)))
        for coordinates in target_coordinates
    ]
    return None if None in registers else tuple(register for register in registers if register is not None)
