"""Code for the coordinates of each register's element, and for whether a register holds a copy.

In: a layout and a tile shape. Out: SSA values, each created once. If a layout counts past the end of an axis
(`tilec.ir.layouts.layout`), positions there wrap back by the axis' extent, and `is_copy` distinguishes them from the element's
own register. Registers that no thread has past an end cost nothing.
"""

from __future__ import annotations

from math import gcd

from tilec.ir.layouts.layout import Layout
from tilec.lowering.context import Context
from tilec.mlir.types import SsaValue, Type, i32


class TileCoordinates:
    """Coordinates of one tile's elements."""

    def __init__(self, context: Context, layout: Layout, shape: tuple[int, ...]) -> None:
        self.context, self.layout, self.shape = context, layout, shape
        self._thread_origin: list[SsaValue] | None = None
        self._past_end: dict[tuple[int, int], SsaValue] = {}
        self._shifts: dict[tuple[int, int, int, Type], SsaValue] = {}
        self._max_offset, self._alignment = [0] * len(shape), list(shape)
        for digit in (*layout.lanes, *layout.warps):
            if digit.axis is not None and digit.extent > 1:
                self._max_offset[digit.axis] += (digit.extent - 1) * digit.stride
                self._alignment[digit.axis] = gcd(self._alignment[digit.axis], digit.stride)
        if layout.wraps(shape):  # create all of them now: values created inside a branch are not visible after it
            for register in range(layout.num_registers):
                for axis, step in enumerate(self.steps(register)):
                    self.past_end(axis, step)

    @property
    def thread_origin(self) -> list[SsaValue]:
        """Coordinates of this thread's register 0 (i32), before wrapping."""
        if self._thread_origin is None:
            zero = [] if self.layout.lanes else [self.context.constant(0)] * len(self.shape)
            self._thread_origin = zero or self.context.thread_coordinates(self.layout)
        return self._thread_origin

    def steps(self, register: int) -> tuple[int, ...]:
        """Distance of a register from register 0 on each axis, before wrapping."""
        return self.layout.coordinates(register, 0, 0)

    def past_end(self, axis: int, step: int) -> SsaValue | None:
        """Whether the position `step` after this thread's first lies past the end of the axis, as i1; None if it does in no
        thread."""
        extent = self.shape[axis]
        if self._max_offset[axis] + step < extent:
            return None
        # All threads start at multiples of a divisor of the extent: positions between two multiples are past the end together.
        step -= step % self._alignment[axis]
        if (axis, step) not in self._past_end:
            limit = self.context.constant(max(0, extent - step))
            self._past_end[axis, step] = self.context.compare("uge", self.thread_origin[axis], limit)
        return self._past_end[axis, step]

    def is_copy(self, register: int) -> SsaValue | None:
        """Whether a register holds a wrapped copy of an element, as i1; None if it does in no thread."""
        out: SsaValue | None = None
        for axis, step in enumerate(self.steps(register)):
            past_end = self.past_end(axis, step)
            out = self.context.bit_or(out, past_end) if out and past_end else out or past_end
        return out

    def is_original(self, register: int) -> SsaValue | None:
        """The negation of `is_copy`; None if it is true in every thread."""
        copy = self.is_copy(register)
        return self.context.bit_xor(copy, 1) if copy else None

    def coordinate(self, register: int, axis: int) -> SsaValue:
        """Coordinate of a register's element on an axis, i32."""
        step = self.steps(register)[axis]
        coordinate = self.context.add(self.thread_origin[axis], step)
        shift = self.shift(axis, step, 1, i32)
        return self.context.add(coordinate, shift) if shift else coordinate

    def shift(self, axis: int, step: int, scale: int, type: Type) -> SsaValue | None:
        """The distance by which the position `step` after this thread's first wraps, times `scale`: 0 or negative; None if it
        never wraps. Created once: a caller that needs it in several branches must request it before them."""
        past_end = self.past_end(axis, step)
        if not past_end:
            return None
        key = (axis, step - step % self._alignment[axis], scale, type)
        if key not in self._shifts:
            wrap_offset, zero = self.context.constant(-self.shape[axis] * scale, type), self.context.constant(0, type)
            self._shifts[key] = self.context.select(past_end, wrap_offset, zero)
        return self._shifts[key]


def conjunction(context: Context, left: SsaValue | None, right: SsaValue | None) -> SsaValue | None:
    """Both conditions; None is one that is always true."""
    return context.bit_and(left, right) if left and right else left or right


def is_first_owner(context: Context, layout: Layout) -> SsaValue | None:
    """Whether this thread is the first of those that have the same elements; None if no element is replicated."""
    if not layout.lanes:
        return context.compare("eq", context.thread(), context.constant(0))
    out: SsaValue | None = None
    lane, warp = context.bit_and(context.thread(), 31), context.lshr(context.thread(), 5)
    for index, digits in ((lane, layout.lanes), (warp, layout.warps)):
        weight = 1
        for digit in digits:
            if digit.axis is None and digit.extent > 1:
                step = context.urem(context.udiv(index, weight), digit.extent)
                out = conjunction(context, out, context.compare("eq", step, context.constant(0)))
            weight *= digit.extent
    return out
