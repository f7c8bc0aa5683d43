"""How the threads of a block hold a tile: a mixed-radix, strided map from (register, lane, warp) to tile coordinates.

Each hardware index is split into digits, least significant first. A digit of `extent` e moves the coordinate on `axis` by
`stride` per step, or nowhere when `axis` is None (the element is then replicated). Extents need not be powers of two, so a
row of 2560 elements fits 320 threads exactly. The form covers blocked layouts, mma fragments and replication alike, after
the layouts of CuTe (https://docs.nvidia.com/cutlass/latest/media/docs/cpp/cute/01_layout.html).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class Digit:
    """One digit of a hardware index."""

    extent: int
    axis: int | None = None
    stride: int = 0

    def __str__(self) -> str:
        return f"{self.extent}" if self.axis is None else f"{self.extent}@{self.axis}*{self.stride}"


@dataclass(frozen=True, slots=True)
class Layout:
    """Digits of the register, lane and warp index. Lane extents multiply to 32, warp extents to the kernel's warps."""

    rank: int
    registers: tuple[Digit, ...]
    lanes: tuple[Digit, ...]
    warps: tuple[Digit, ...]

    @property
    def num_registers(self) -> int:
        """Elements held per thread."""
        return prod(d.extent for d in self.registers)

    def coordinates(self, register: int, lane: int, warp: int) -> tuple[int, ...]:
        """Tile coordinates of one element."""
        out = [0] * self.rank
        for digits, index in ((self.registers, register), (self.lanes, lane), (self.warps, warp)):
            for digit in digits:
                index, step = divmod(index, digit.extent)
                if digit.axis is not None:
                    out[digit.axis] += step * digit.stride
        return tuple(out)

    def __str__(self) -> str:
        groups = (self.registers, self.lanes, self.warps)
        return "<" + " | ".join(" ".join(map(str, group)) or "1" for group in groups) + ">"
