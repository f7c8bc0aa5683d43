"""Addresses and bounds tests of the elements of accesses to tensors.

In: a tensor, and the offsets of a box or the indices of an element. Out: pointers, and conditions; nothing is accessed.
Addresses are 64-bit.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from tilec.ir.core import Value
from tilec.ir.layouts.layout import Layout
from tilec.ir.ops import Constant
from tilec.lowering import positions
from tilec.lowering.context import Context
from tilec.lowering.coordinates import TileCoordinates, conjunction
from tilec.mlir.types import SsaValue, i1, i64


class Box:
    """Addresses and bounds tests of a box, for the elements of this thread. `moved`: how far the box begins after `offsets` on
    each axis."""

    def __init__(
        self, context: Context, tensor: Value, offsets: list[Value], shape: tuple[int, ...], layout: Layout,
        moved: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.moved = moved or [0] * len(shape)
        self.context, self.tensor, self.shape, self.layout = context, tensor, shape, layout
        self.in_bounds_axes = _axes_in_bounds(tensor, offsets, shape)
        self.offsets = [positions.start(context, offset, context.scalar(offset)).wide(context) for offset in offsets]
        self.wraps = [offset.tile.dtype.bits == 64 for offset in offsets]
        self.coordinates = TileCoordinates(context, layout, shape)
        self.first = [
            context.add(offset, context.zext(coordinate, i64))
            for offset, coordinate in zip(self.offsets, self.coordinates.thread_origin, strict=True)
        ]
        self.shared_base = self.base = element_pointer(context, tensor, self.first)
        self.strides: dict[int, SsaValue] = {}  # those of `separate`
        self.wrapped: dict[
            tuple[int, int], SsaValue
        ] = {}  # positions on an axis by their step from the first register; only for layouts that wrap
        if layout.wraps(shape):
            for register in range(layout.num_registers):
                for axis, step in enumerate(self.coordinates.steps(register)):
                    self._wrap_offset(axis, step)
                    if (axis, step) not in self.wrapped:
                        self.wrapped[axis, step] = self._position(axis, step)

    def separate(self) -> None:
        """Compute further addresses from copies of base and strides that the compiler cannot see through: it would otherwise
        compute those that two branches share before both, or before a loop, and all of them at once."""
        self.base = self._copy(self.shared_base)
        for axis in range(self.tensor.tensor.rank):
            if self.context.stride_constant(self.tensor, axis) is None:
                self.strides[axis] = self._copy(self.context.stride(self.tensor, axis))

    def _copy(self, value: SsaValue) -> SsaValue:
        return self.context.inline_ptx("mov.b64 $0, $1;", "=l,l", [value], [value.type])[0]

    def _stride(self, axis: int) -> SsaValue:
        return self.strides[axis] if axis in self.strides else self.context.stride(self.tensor, axis)

    def pointer(self, register: int, ahead: int = 0) -> SsaValue:
        """Address of the element `ahead` of a register's on the last axis."""
        context, size = self.context, self.tensor.tensor.dtype.bytes
        constant_offset, pointer = 0, self.base
        for axis, step in enumerate(self.coordinates.steps(register)):
            stride, distance = context.stride_constant(self.tensor, axis), step + self._extra(axis, ahead)
            if stride is not None:
                constant_offset += distance * stride * size
            elif distance:
                byte_offset = context.mul(self._stride(axis), context.constant(distance * size, i64))
                pointer = context.offset(pointer, byte_offset)
            wrap_offset = self._wrap_offset(axis, step)
            if wrap_offset:
                byte_offset = wrap_offset if stride is not None else context.mul(self._stride(axis), wrap_offset)
                pointer = context.offset(pointer, byte_offset)
        return context.offset(pointer, constant_offset)

    def all_in_bounds(self) -> SsaValue:
        """Whether the whole box lies in the tensor; uniform over the block."""
        context, in_bounds = self.context, None
        for axis, offset in enumerate(self.offsets):
            limit = self._extent(axis)
            in_bounds = conjunction(context, in_bounds, context.compare("sge", offset, context.constant(0, i64)))
            if self.wraps[axis]:  # offset + shape could overflow i64
                last = context.sub(limit, self.shape[axis])
                in_bounds = conjunction(context, in_bounds, context.compare("sle", offset, last))
                continue
            end = context.add(offset, context.constant(self.shape[axis], i64))
            in_bounds = conjunction(context, in_bounds, context.compare("sle", end, limit))
        assert in_bounds is not None
        return in_bounds

    def no_partial_access(self, width: int, *, rows_end_aligned: bool) -> bool:
        """Whether each access of `width` consecutive elements is either entirely inside or entirely outside the tensor: the box
        is known to be inside along the last axis, or rows end at access boundaries (`rows_end_aligned`).

        In the second case the extent is a multiple of `width`. So is the start of each access, also modulo 2**64: `width` is a
        power of two that divides the known divisor of the offset (`Load.vector`) and the length of a register's contiguous run,
        and the layout's other strides on that axis are multiples of that run. Wrapping moves a position by the box's extent,
        which `width` divides, so consecutive elements wrap together. Neither boundary, 0 or the extent, can then lie inside an
        access.
        """
        last = self.tensor.tensor.rank - 1
        return last in self.in_bounds_axes or (rows_end_aligned and self.shape[last] % width == 0)

    def element_in_bounds(self, register: int, ahead: int = 0) -> SsaValue:
        """Whether the element `ahead` of a register's on the last axis lies in the tensor."""
        steps = enumerate(self.coordinates.steps(register))
        position = [self.wrapped.get((axis, step)) or self._position(axis, step) for axis, step in steps]
        for axis in range(len(position)):
            if extra := self._extra(axis, ahead):
                position[axis] = self.context.add(position[axis], extra)
        return element_in_bounds(self.context, self.tensor, position, self.in_bounds_axes) or self.context.constant(1, i1)

    def _extra(self, axis: int, ahead: int) -> int:
        """How much farther than the box at `offsets` the box, or what lies `ahead` of an element of it, is on an axis."""
        return self.moved[axis] + (ahead if axis == len(self.shape) - 1 else 0)

    def _position(self, axis: int, step: int) -> SsaValue:
        """Position on an axis of a register `step` after the first, i64."""
        position = self.first[axis]
        if step:
            position = self.context.add(position, step)
        wrap_offset = self.coordinates.shift(axis, step, 1, i64)
        return self.context.add(position, wrap_offset) if wrap_offset else position

    def _wrap_offset(self, axis: int, step: int) -> SsaValue | None:
        """The offset that wrapping adds to an address (0 or negative): in bytes, or in bytes per element of a stride known only
        at launch."""
        stride = self.context.stride_constant(self.tensor, axis)
        return self.coordinates.shift(axis, step, self.tensor.tensor.dtype.bytes * (1 if stride is None else stride), i64)

    def _extent(self, axis: int) -> SsaValue:
        return self.context.launch_value(self.tensor.tensor.dims[axis])


def _axes_in_bounds(tensor: Value, offsets: list[Value], shape: tuple[int, ...]) -> set[int]:
    """Axes along which a box at a constant offset lies inside a constant extent."""
    found: set[int] = set()
    for axis, (offset, extent) in enumerate(zip(offsets, shape, strict=True)):
        limit = tensor.tensor.dims[axis].constant
        if isinstance(offset.owner, Constant) and limit is not None and 0 <= offset.owner.value <= limit - extent:
            found.add(axis)
    return found


def element_in_bounds(
    context: Context, tensor: Value, position: list[SsaValue], known_axes: Set[int] = frozenset()
) -> SsaValue | None:
    """Whether an element lies in the tensor, tested on the axes that are not in `known_axes`; None if no test is left."""
    out: SsaValue | None = None
    for axis, index in enumerate(position):
        if axis in known_axes:
            continue
        # The unsigned comparison also rejects negative indices.
        out = conjunction(context, out, context.compare("ult", index, context.launch_value(tensor.tensor.dims[axis])))
    return out


def as_i64(context: Context, value: Value, registers: list[SsaValue]) -> list[SsaValue]:
    """Indices as i64, from which both addresses and masks are computed."""
    return [positions.position(context, value, register).wide(context) for register in registers]


def element_pointer(context: Context, tensor: Value, position: list[SsaValue]) -> SsaValue:
    size = tensor.tensor.dtype.bytes
    pointer = context.pointer(tensor)
    for axis, index in enumerate(position):
        stride = context.stride_constant(tensor, axis)
        if stride is not None:
            byte_offset = context.mul(index, context.constant(stride * size, i64))
        else:
            byte_offset = context.mul(context.mul(index, context.stride(tensor, axis)), context.constant(size, i64))
        pointer = context.offset(pointer, byte_offset)
    return pointer
