"""Accesses to global memory: vector accesses if the whole box is inside its tensor, else masked accesses to elements or
vectors.

Addresses are 64-bit. The test whether the box is inside is uniform over the block, so a tensor's tail costs full blocks only
one comparison. The barriers that an access needs are placed earlier (`tilec.passes.schedule.sync.barrier_insertion`).
"""

from __future__ import annotations

from collections.abc import Set
from functools import partial

from tilec.ir.core import Value
from tilec.ir.expr import sym
from tilec.ir.layouts.blocked_layouts import vector_length
from tilec.ir.layouts.layout import Layout
from tilec.ir.ops import (
    AtomicUpdate,
    Binary,
    Broadcast,
    Constant,
    DimValue,
    Gather,
    Iota,
    Load,
    Reshape,
    Scatter,
    Select,
    Store,
)
from tilec.ir.ops.staging_ops import Relayout
from tilec.ir.types import i32
from tilec.lowering import positions
from tilec.lowering.atomics import float_extremum
from tilec.lowering.context import Context, literal
from tilec.lowering.places import Places
from tilec.lowering.rules import lowers
from tilec.lowering.words import Words, load_one, load_where, store_vector
from tilec.mlir.types import SsaValue, i1, i8, i64


@lowers(Load)
def lower_load(context: Context, op: Load) -> None:
    """Vectors of `op.vector` bytes, through the read-only path if nothing can write the tensor while the kernel runs."""
    layout = op.result.layout or Layout(op.result.tile.rank, (), (), ())
    dtype = op.result.tile.dtype
    box = _Box(context, op.source, op.offsets, op.result.tile.shape, layout)
    path = context.path(op.source)
    width = vector_length(layout, op.vector // dtype.bytes)
    in_pieces = box.in_pieces(width, ends=op.whole)

    words = Words(context, dtype, width, once=context.is_read_once(op.source, op.offsets))

    def whole() -> list[SsaValue]:
        return [word for r in range(0, layout.num_registers, width) for word in words.load(box.pointer(r), path)]

    if op.pad is None:
        context.assign(op.result, words.elements(whole()))
        return
    pad = literal(context, op.pad, dtype)

    def element(register: int) -> SsaValue:
        pointer = box.pointer(register)
        load = partial(load_one, context, pointer, dtype, path)
        return context.choose(box.element_inside(register), load, lambda: pad)

    def access(register: int, outside: list[SsaValue]) -> list[SsaValue]:
        def inside() -> list[SsaValue]:
            return words.load(box.pointer(register), path)

        return context.choose_all(box.element_inside(register), inside, lambda: outside)

    def partly() -> list[SsaValue]:
        if not in_pieces:
            return words.pack([element(register) for register in range(layout.num_registers)])
        outside = words.pack([pad] * width)
        return [word for register in range(0, layout.num_registers, width) for word in access(register, outside)]

    context.assign(op.result, words.elements(context.choose_all(box.whole_inside(), whole, partly)))


@lowers(Store)
def lower_store(context: Context, op: Store) -> None:
    """Each element is stored by the first of the threads that have a copy of it."""
    dtype = op.tile.tile.dtype
    layout = op.tile.layout or Layout(op.tile.tile.rank, (), (), ())
    held = context.registers(op.tile)
    box = _Box(context, op.target, op.offsets, op.tile.tile.shape, layout)
    width = vector_length(layout, op.vector // dtype.bytes)
    if dtype.kind == "b":
        held = [context.zext(value, i8) for value in held]

    def whole() -> None:
        for first in range(0, layout.num_registers, width):
            with context.where(box.places.is_own(first)):
                store_vector(context, box.pointer(first), held[first : first + width], streamed=op.streamed)

    def partly() -> None:
        step = width if box.in_pieces(width, ends=op.whole) else 1
        for first in range(0, layout.num_registers, step):
            with context.where(_and(context, box.places.is_own(first), box.element_inside(first))):
                store_vector(context, box.pointer(first), held[first : first + step], streamed=op.streamed)

    with context.where(_owns(context, layout)):
        if op.mask:
            context.either(box.whole_inside(), whole, partly)
        else:
            whole()


@lowers(Gather)
def lower_gather(context: Context, op: Gather) -> None:
    """One element per index; indices outside the tensor give the pad."""
    layout = op.result.layout
    assert layout is not None
    dtype = op.result.tile.dtype
    path = context.path(op.source)
    asked, chosen = _asked(op) if op.pad is not None else (None, op.indices)
    indices = [_wide(context, index, context.registers(index)) for index in chosen]
    parts = [_apart(context, index) for index in chosen] if op.pad is not None else indices
    out: list[SsaValue] = []
    for register in range(layout.num_registers):
        place = [held[register] for held in indices]
        if op.pad is None:
            out.append(load_one(context, _element(context, op.source, place), dtype, path))
            continue
        inside = _inside(context, op.source, place)
        inside = _and(context, context.registers(asked)[register] if asked else None, inside)
        assert inside is not None
        pad = literal(context, op.pad, dtype)
        out.append(
            load_where(context, inside, _element(context, op.source, [part[register] for part in parts]), pad, dtype, path)
        )
    context.assign(op.result, out)


def _apart(context: Context, index: Value) -> list[SsaValue]:
    """Indices as i64 for the addresses of loads that are predicated on the index lying in the tensor. Nonnegative steps from a
    common index are added in i64, so the common address is computed once and constant steps become immediates of the
    instructions. In i32, the sum of an index and a nonnegative offset that overflows wraps to a negative number, which is
    outside every tensor; if it does not overflow, both sums are equal."""
    made = index.owner
    if isinstance(made, Binary) and made.kind == "add" and index.tile.dtype == i32:
        for common, steps in (made.operands, made.operands[::-1]):
            if common.layout == steps.layout == index.layout and 0 <= _most(steps) < 1 << 31:
                pairs = zip(*(_wide(context, one, context.registers(one)) for one in (common, steps)), strict=True)
                return [context.add(start, step) for start, step in pairs]
    return _wide(context, index, context.registers(index))


def _most(steps: Value) -> int:
    """The largest element of a tile built from `arange`, nonnegative constants, sums and products; -1 if it is built
    otherwise."""
    made = steps.owner
    match made:
        case Iota():
            return steps.tile.shape[0] - 1
        case Constant():
            return int(made.value)
        case Broadcast() | Relayout() | Reshape():
            return _most(made.operands[0])
        case Binary(kind="add" | "mul"):
            left, right = (_most(one) for one in made.operands)
            return -1 if left < 0 or right < 0 else left + right if made.kind == "add" else left * right
        case _:
            return -1


def _asked(op: Gather) -> tuple[Value | None, list[Value]]:
    """The condition and indices of a conditional gather; condition None means all elements. In `where(asked, i, N)` for a
    tensor of N elements, the index is outside the tensor wherever `asked` is false, so the condition replaces the select."""
    made = op.indices[0].owner
    if len(op.indices) > 1 or not isinstance(made, Select):
        return None, op.indices
    asked, place, other = made.operands
    while isinstance(other.owner, Broadcast):
        other = other.owner.operands[0]
    is_end = isinstance(other.owner, DimValue) and op.source.tensor.dims[0] == sym(other.owner.symbol)
    same = asked.layout == place.layout == op.indices[0].layout
    return (asked, [place]) if is_end and same else (None, op.indices)


@lowers(Scatter)
def lower_scatter(context: Context, op: Scatter) -> None:
    """One element per index; with a mask, elements outside the tensor are not written."""
    layout = op.tile.layout
    assert layout is not None
    held = context.registers(op.tile)
    indices = [_wide(context, index, context.registers(index)) for index in op.indices]
    places = Places(context, layout, op.tile.tile.shape)
    with context.where(_owns(context, layout)):
        for register in range(layout.num_registers):
            place = [values[register] for values in indices]
            inside = _inside(context, op.target, place) if op.mask else None
            with context.where(_and(context, places.is_own(register), inside)):
                store_vector(context, _element(context, op.target, place), [held[register]])


@lowers(AtomicUpdate)
def lower_atomic(context: Context, op: AtomicUpdate) -> None:
    """One relaxed atomic per element."""
    dtype = op.tile.tile.dtype
    layout = op.tile.layout or Layout(op.tile.tile.rank, (), (), ())
    held = context.registers(op.tile)
    box = _Box(context, op.target, op.offsets, op.tile.tile.shape, layout)
    signed = "" if dtype.kind == "i" else "u"
    kind = ("fadd" if dtype.is_float else "add") if op.kind == "add" else ("f" if dtype.is_float else signed) + op.kind
    with context.where(_owns(context, layout)):
        for register in range(layout.num_registers):
            inside = box.element_inside(register) if op.mask else None
            with context.where(_and(context, box.places.is_own(register), inside)):
                if kind in ("fmax", "fmin"):
                    float_extremum(context, op.kind, box.pointer(register), held[register])
                else:
                    context.atomic_update(kind, box.pointer(register), held[register])


class _Box:
    """Addresses and bounds tests of a box, for the elements of this thread."""

    def __init__(self, context: Context, tensor: Value, offsets: list[Value], shape: tuple[int, ...], layout: Layout) -> None:
        self.context, self.tensor, self.shape, self.layout = context, tensor, shape, layout
        self.known_inside = _known_inside(tensor, offsets, shape)
        self.offsets = [_wide(context, offset, [context.scalar(offset)])[0] for offset in offsets]
        self.wraps = [offset.tile.dtype.bits == 64 for offset in offsets]
        self.places = Places(context, layout, shape)
        self.first = [
            context.add(offset, context.zext(coordinate, i64))
            for offset, coordinate in zip(self.offsets, self.places.own, strict=True)
        ]
        self.base = _element(context, tensor, self.first)
        self.wrapped: dict[
            tuple[int, int], SsaValue
        ] = {}  # positions on an axis by their step from the first register; only for layouts that wrap
        if layout.wraps(shape):
            for register in range(layout.num_registers):
                for axis, step in enumerate(self.places.steps(register)):
                    self._back(axis, step)
                    if (axis, step) not in self.wrapped:
                        self.wrapped[axis, step] = self._place(axis, step)

    def pointer(self, register: int) -> SsaValue:
        """Address of a register's element."""
        context, size = self.context, self.tensor.tensor.dtype.bytes
        fixed, pointer = 0, self.base
        for axis, step in enumerate(self.places.steps(register)):
            stride = context.stride_constant(self.tensor, axis)
            if stride is not None:
                fixed += step * stride * size
            elif step:
                moved = context.mul(context.stride(self.tensor, axis), context.constant(step * size, i64))
                pointer = context.offset(pointer, moved)
            back = self._back(axis, step)
            if back:
                moved = back if stride is not None else context.mul(context.stride(self.tensor, axis), back)
                pointer = context.offset(pointer, moved)
        return context.offset(pointer, fixed)

    def whole_inside(self) -> SsaValue:
        """Whether the whole box lies in the tensor; uniform over the block."""
        context, out = self.context, None
        for axis, offset in enumerate(self.offsets):
            limit = self._extent(axis)
            out = _and(context, out, context.compare("sge", offset, context.constant(0, i64)))
            if self.wraps[axis]:  # offset + shape could overflow i64
                last = context.sub(limit, self.shape[axis])
                out = _and(context, out, context.compare("sle", offset, last))
                continue
            end = context.add(offset, context.constant(self.shape[axis], i64))
            out = _and(context, out, context.compare("sle", end, limit))
        assert out is not None
        return out

    def in_pieces(self, width: int, *, ends: bool) -> bool:
        """Whether each access of `width` consecutive elements is either entirely inside or entirely outside the tensor: the box
        is known to be inside along the last axis, or rows end at access boundaries (`ends`).

        In the second case the extent is a multiple of `width`. So is the start of each access, also modulo 2**64: `width` is a
        power of two that divides the known divisor of the offset (`Load.vector`) and the length of a register's contiguous run,
        and the layout's other strides on that axis are multiples of that run. Wrapping moves a position by the box's extent,
        which `width` divides, so consecutive elements wrap together. Neither boundary, 0 or the extent, can then lie inside an
        access.
        """
        last = self.tensor.tensor.rank - 1
        return last in self.known_inside or (ends and self.shape[last] % width == 0)

    def element_inside(self, register: int) -> SsaValue:
        """Whether a register's element lies in the tensor."""
        steps = enumerate(self.places.steps(register))
        place = [self.wrapped.get((axis, step)) or self._place(axis, step) for axis, step in steps]
        return _inside(self.context, self.tensor, place, self.known_inside) or self.context.constant(1, i1)

    def _place(self, axis: int, step: int) -> SsaValue:
        """Position on an axis of a register `step` after the first, i64."""
        at = self.first[axis]
        if step:
            at = self.context.add(at, step)
        back = self.places.shift(axis, step, 1, i64)
        return self.context.add(at, back) if back else at

    def _back(self, axis: int, step: int) -> SsaValue | None:
        """The offset that wrapping adds to an address (0 or negative): in bytes, or in bytes per element of a stride known only
        at launch."""
        stride = self.context.stride_constant(self.tensor, axis)
        return self.places.shift(axis, step, self.tensor.tensor.dtype.bytes * (1 if stride is None else stride), i64)

    def _extent(self, axis: int) -> SsaValue:
        return self.context.host(self.tensor.tensor.dims[axis])


def _known_inside(tensor: Value, offsets: list[Value], shape: tuple[int, ...]) -> set[int]:
    """Axes along which a box at a constant offset lies inside a constant extent."""
    found: set[int] = set()
    for axis, (offset, extent) in enumerate(zip(offsets, shape, strict=True)):
        limit = tensor.tensor.dims[axis].constant
        if isinstance(offset.owner, Constant) and limit is not None and 0 <= offset.owner.value <= limit - extent:
            found.add(axis)
    return found


def _inside(context: Context, tensor: Value, place: list[SsaValue], known: Set[int] = frozenset()) -> SsaValue | None:
    """Whether an element lies in the tensor, tested on the axes that are not in `known`; None if no test is left."""
    out: SsaValue | None = None
    for axis, index in enumerate(place):
        if axis in known:
            continue
        # The unsigned comparison also rejects negative indices.
        out = _and(context, out, context.compare("ult", index, context.host(tensor.tensor.dims[axis])))
    return out


def _and(context: Context, left: SsaValue | None, right: SsaValue | None) -> SsaValue | None:
    return context.bit_and(left, right) if left and right else left or right


def _wide(context: Context, value: Value, held: list[SsaValue]) -> list[SsaValue]:
    """Indices as i64, from which both addresses and masks are computed."""
    return [positions.position(context, value, one).wide(context) for one in held]


def _element(context: Context, tensor: Value, place: list[SsaValue]) -> SsaValue:
    size = tensor.tensor.dtype.bytes
    pointer = context.pointer(tensor)
    for axis, index in enumerate(place):
        stride = context.stride_constant(tensor, axis)
        if stride is not None:
            moved = context.mul(index, context.constant(stride * size, i64))
        else:
            moved = context.mul(context.mul(index, context.stride(tensor, axis)), context.constant(size, i64))
        pointer = context.offset(pointer, moved)
    return pointer


def _owns(context: Context, layout: Layout) -> SsaValue | None:
    """Whether this thread is the first of those that have the same elements; None if no element is replicated."""
    if not layout.lanes:
        return context.compare("eq", context.thread(), context.constant(0))
    out: SsaValue | None = None
    lane, warp = context.bit_and(context.thread(), 31), context.lshr(context.thread(), 5)
    for index, digits in ((lane, layout.lanes), (warp, layout.warps)):
        position = 1
        for digit in digits:
            if digit.axis is None and digit.extent > 1:
                step = context.urem(context.udiv(index, position), digit.extent)
                out = _and(context, out, context.compare("eq", step, context.constant(0)))
            position *= digit.extent
    return out
