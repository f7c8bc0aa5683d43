"""Which element of a tile each register of a thread holds, as code: coordinates, and whether a register holds a copy.

In: a layout and the shape of the tile it holds. Out: SSA values, made once each. Where a layout counts past the end of an axis
(`tilec.ir.layout`), a position there is brought back by the axis' extent, and `is_copy` tells it from the element's own.
Registers that no thread holds past an end cost nothing.
"""

from __future__ import annotations

from math import gcd

from tilec.ir.layout import Layout
from tilec.lowering.context import Context
from tilec.mlir.types import SsaValue, Type, i32


class Places:
    """The places of one tile's elements."""

    def __init__(self, context: Context, layout: Layout, shape: tuple[int, ...]) -> None:
        self.context, self.layout, self.shape = context, layout, shape
        self._own: list[SsaValue] | None = None
        self._past: dict[tuple[int, int], SsaValue] = {}
        self._shifts: dict[tuple[int, int, int, Type], SsaValue] = {}
        self._furthest, self._step = [0] * len(shape), list(shape)
        for digit in (*layout.lanes, *layout.warps):
            if digit.axis is not None and digit.extent > 1:
                self._furthest[digit.axis] += (digit.extent - 1) * digit.stride
                self._step[digit.axis] = gcd(self._step[digit.axis], digit.stride)
        if layout.wraps(shape):  # all of them now: what is made inside a branch is not known behind it
            for register in range(layout.num_registers):
                for axis, step in enumerate(self.steps(register)):
                    self.past(axis, step)

    @property
    def own(self) -> list[SsaValue]:
        """Coordinates of this thread's register 0 (i32), before they wrap."""
        if self._own is None:
            zero = [] if self.layout.lanes else [self.context.constant(0)] * len(self.shape)
            self._own = zero or self.context.thread_coordinates(self.layout)
        return self._own

    def steps(self, register: int) -> tuple[int, ...]:
        """How far a register lies from register 0, on each axis, before it wraps."""
        return self.layout.coordinates(register, 0, 0)

    def past(self, axis: int, step: int) -> SsaValue | None:
        """Whether the position `step` behind this thread's first lies past the end of the axis, as i1; None where that is so
        in no thread."""
        extent = self.shape[axis]
        if self._furthest[axis] + step < extent:
            return None
        # Threads begin at multiples of what also divides the extent: neighbours in between are past the end together.
        step -= step % self._step[axis]
        if (axis, step) not in self._past:
            limit = self.context.constant(max(0, extent - step))
            self._past[axis, step] = self.context.compare("uge", self.own[axis], limit)
        return self._past[axis, step]

    def is_copy(self, register: int) -> SsaValue | None:
        """Whether a register holds what another position holds by right, as i1; None where that is so in no thread."""
        out: SsaValue | None = None
        for axis, step in enumerate(self.steps(register)):
            past = self.past(axis, step)
            out = self.context.bit_or(out, past) if out and past else out or past
        return out

    def is_own(self, register: int) -> SsaValue | None:
        """The opposite of `is_copy`; None where it is so in every thread."""
        copy = self.is_copy(register)
        return self.context.bit_xor(copy, 1) if copy else None

    def coordinate(self, register: int, axis: int) -> SsaValue:
        """Where the element of a register lies on an axis, i32."""
        step = self.steps(register)[axis]
        place = self.context.add(self.own[axis], step)
        shift = self.shift(axis, step, 1, i32)
        return self.context.add(place, shift) if shift else place

    def shift(self, axis: int, step: int, scale: int, type: Type) -> SsaValue | None:
        """By how much the position `step` behind this thread's first wraps, times `scale`: 0 or less; None where never. Made
        once: where branches ask for it, it is to be asked for before them."""
        past = self.past(axis, step)
        if not past:
            return None
        key = (axis, step - step % self._step[axis], scale, type)
        if key not in self._shifts:
            back, none = self.context.constant(-self.shape[axis] * scale, type), self.context.constant(0, type)
            self._shifts[key] = self.context.select(past, back, none)
        return self._shifts[key]
