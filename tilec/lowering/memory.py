"""Accesses to global memory: vector accesses if the whole box is inside its tensor, else masked accesses to elements or
vectors.

Addresses are 64-bit. The test whether the box is inside is uniform over the block, so a tensor's tail costs full blocks only
one comparison. The barriers that an access needs are placed earlier (`tilec.passes.schedule.sync.barrier_insertion`).
"""

from __future__ import annotations

from functools import partial

from tilec.ir.core import Value
from tilec.ir.expr import sym
from tilec.ir.layouts.blocked_layouts import vector_length
from tilec.ir.layouts.layout import Layout
from tilec.ir.ops import (
    BOX_KINDS,
    AtomicScatter,
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
from tilec.ir.ops.staging_ops import LoadAhead, Relayout
from tilec.ir.types import DType, i32
from tilec.lowering import quad_words
from tilec.lowering.atomics import combine, combine_vector, old_value
from tilec.lowering.boxes import Box, as_i64, element_in_bounds, element_pointer
from tilec.lowering.context import Context, Path, literal
from tilec.lowering.coordinates import TileCoordinates, conjunction, is_first_owner
from tilec.lowering.rules import lowers
from tilec.lowering.words import Words, load_element, load_predicated, store_vector
from tilec.mlir.types import SsaValue, i8


@lowers(Load, LoadAhead)
def lower_load(context: Context, op: Load) -> None:
    """Vectors of `op.vector` bytes, through the read-only path if nothing can write the tensor while the kernel runs."""
    layout = op.result.layout or Layout(op.result.tile.rank, (), (), ())
    dtype = op.result.tile.dtype
    box = Box(context, op.source, op.offsets, op.result.tile.shape, layout)
    path = context.path(op.source)
    width = vector_length(layout, op.vector // dtype.bytes)
    no_partial_access = box.no_partial_access(width, rows_end_aligned=op.whole)

    words = Words(context, dtype, width, once=context.is_read_once(op.source, op.offsets))

    def load_box() -> list[SsaValue]:
        if isinstance(op, LoadAhead):
            box.separate()
        return [word for r in range(0, layout.num_registers, width) for word in words.load(box.pointer(r), path)]

    found = quad_words.runs(op, layout) if path is not Path.WRITTEN else []
    if found and (op.pad is None or box.no_partial_access(quad_words.WORD * len(found[0]), rows_end_aligned=op.whole)):
        if isinstance(op, LoadAhead):
            box.separate()
        context.assign(op.result, quad_words.load(context, op, box, found, path))
        return
    if op.pad is None:
        context.assign(op.result, words.elements(load_box()))
        return
    pad = literal(context, op.pad, dtype)

    def element(register: int) -> SsaValue:
        pointer = box.pointer(register)
        load = partial(load_element, context, pointer, dtype, path)
        return context.choose(box.element_in_bounds(register), load, lambda: pad)

    def access(register: int, padding: list[SsaValue]) -> list[SsaValue]:
        def load_words() -> list[SsaValue]:
            return words.load(box.pointer(register), path)

        return context.choose_all(box.element_in_bounds(register), load_words, lambda: padding)

    def load_elements_in_bounds() -> list[SsaValue]:
        if isinstance(op, LoadAhead):
            box.separate()
        if not no_partial_access:
            return words.pack([element(register) for register in range(layout.num_registers)])
        padding = words.pack([pad] * width)
        return [word for register in range(0, layout.num_registers, width) for word in access(register, padding)]

    context.assign(op.result, words.elements(context.choose_all(box.all_in_bounds(), load_box, load_elements_in_bounds)))


@lowers(Store)
def lower_store(context: Context, op: Store) -> None:
    """Each element is stored by the first of the threads that have a copy of it."""
    dtype = op.tile.tile.dtype
    layout = op.tile.layout or Layout(op.tile.tile.rank, (), (), ())
    registers = context.registers(op.tile)
    box = Box(context, op.target, op.offsets, op.tile.tile.shape, layout)
    width = vector_length(layout, op.vector // dtype.bytes)
    if dtype.kind == "b":
        registers = [context.zext(value, i8) for value in registers]

    def store_box() -> None:
        for register in range(0, layout.num_registers, width):
            with context.where(box.coordinates.is_original(register)):
                store_vector(context, box.pointer(register), registers[register : register + width], streamed=op.streamed)

    def store_elements_in_bounds() -> None:
        step = width if box.no_partial_access(width, rows_end_aligned=op.whole) else 1
        for register in range(0, layout.num_registers, step):
            with context.where(conjunction(context, box.coordinates.is_original(register), box.element_in_bounds(register))):
                store_vector(context, box.pointer(register), registers[register : register + step], streamed=op.streamed)

    with context.where(is_first_owner(context, layout)):
        if op.mask:
            context.either(box.all_in_bounds(), store_box, store_elements_in_bounds)
        else:
            store_box()


@lowers(Gather)
def lower_gather(context: Context, op: Gather) -> None:
    """One element per index, or a vector of consecutive ones; indices outside the tensor give the pad."""
    layout = op.result.layout
    assert layout is not None
    dtype = op.result.tile.dtype
    path = context.path(op.source)
    width = _vector_width(op, layout)
    if width > 1:
        _gather_vectors(context, op, layout, width)
        return
    condition, requested_indices = _condition_and_indices(op) if op.pad is not None else (None, op.indices)
    indices = [as_i64(context, index, context.registers(index)) for index in requested_indices]
    address_indices = [_address_indices(context, index) for index in requested_indices] if op.pad is not None else indices
    out: list[SsaValue] = []
    for register in range(layout.num_registers):
        coordinates = [values[register] for values in indices]
        if op.pad is None:
            out.append(load_element(context, element_pointer(context, op.source, coordinates), dtype, path))
            continue
        in_bounds = element_in_bounds(context, op.source, coordinates)
        in_bounds = conjunction(context, context.registers(condition)[register] if condition else None, in_bounds)
        assert in_bounds is not None
        pad = literal(context, op.pad, dtype)
        out.append(
            load_predicated(
                context,
                in_bounds,
                element_pointer(context, op.source, [part[register] for part in address_indices]),
                pad,
                dtype,
                path,
            )
        )
    context.assign(op.result, out)


def _gather_vectors(context: Context, op: Gather, layout: Layout, width: int) -> None:
    """Vectors of consecutive positions, each entirely inside or outside the tensor (`lower_atomic_scatter`)."""
    dtype, path = op.result.tile.dtype, context.path(op.source)
    indices = [as_i64(context, index, context.registers(index)) for index in op.indices]
    words = Words(context, dtype, width)
    padding = words.pack([literal(context, op.pad, dtype)] * width) if op.pad is not None else []
    out: list[SsaValue] = []
    for register in range(0, layout.num_registers, width):
        position = [values[register] for values in indices]

        def load(position: list[SsaValue] = position) -> list[SsaValue]:
            return words.load(element_pointer(context, op.source, position), path)

        in_bounds = element_in_bounds(context, op.source, position) if op.pad is not None else None
        out += load() if in_bounds is None else context.choose_all(in_bounds, load, lambda: padding)
    context.assign(op.result, words.elements(out))


def _address_indices(context: Context, index: Value) -> list[SsaValue]:
    """Indices as i64 for the addresses of loads that are predicated on the index lying in the tensor. Nonnegative steps from a
    common index are added in i64, so the common address is computed once and constant steps become immediates of the
    instructions. In i32, the sum of an index and a nonnegative offset that overflows wraps to a negative number, which is
    outside every tensor; if it does not overflow, both sums are equal."""
    owner = index.owner
    if isinstance(owner, Binary) and owner.kind == "add" and index.tile.dtype == i32:
        for common, addends in (owner.operands, owner.operands[::-1]):
            if common.layout == addends.layout == index.layout and 0 <= _largest_element(addends) < 1 << 31:
                pairs = zip(*(as_i64(context, tile, context.registers(tile)) for tile in (common, addends)), strict=True)
                return [context.add(base, addend) for base, addend in pairs]
    return as_i64(context, index, context.registers(index))


def _largest_element(steps: Value) -> int:
    """The largest element of a tile built from `arange`, nonnegative constants, sums and products; -1 if it is built
    otherwise."""
    owner = steps.owner
    match owner:
        case Iota():
            return steps.tile.shape[0] - 1
        case Constant():
            return int(owner.value)
        case Broadcast() | Relayout() | Reshape():
            return _largest_element(owner.operands[0])
        case Binary(kind="add" | "mul"):
            left, right = (_largest_element(operand) for operand in owner.operands)
            return -1 if left < 0 or right < 0 else left + right if owner.kind == "add" else left * right
        case _:
            return -1


def _condition_and_indices(op: Gather) -> tuple[Value | None, list[Value]]:
    """The condition and indices of a conditional gather; condition None means all elements. In `where(condition, i,
    N)` for a tensor of N elements, the index is outside the tensor wherever `condition` is false, so it replaces the select."""
    owner = op.indices[0].owner
    if len(op.indices) > 1 or not isinstance(owner, Select):
        return None, op.indices
    condition, index, fallback = owner.operands
    while isinstance(fallback.owner, Broadcast):
        fallback = fallback.owner.operands[0]
    is_extent = isinstance(fallback.owner, DimValue) and op.source.tensor.dims[0] == sym(fallback.owner.symbol)
    same_layouts = condition.layout == index.layout == op.indices[0].layout
    return (condition, [index]) if is_extent and same_layouts else (None, op.indices)


@lowers(Scatter)
def lower_scatter(context: Context, op: Scatter) -> None:
    """One element per index, or a vector of consecutive ones; with a mask, elements outside the tensor are not written."""
    layout = op.tile.layout
    assert layout is not None
    registers, width = context.registers(op.tile), _vector_width(op, layout)
    indices = [as_i64(context, index, context.registers(index)) for index in op.indices]
    coordinates = TileCoordinates(context, layout, op.tile.tile.shape)
    with context.where(is_first_owner(context, layout)):
        for register in range(0, layout.num_registers, width):
            position = [values[register] for values in indices]
            in_bounds = element_in_bounds(context, op.target, position) if op.mask else None
            with context.where(conjunction(context, coordinates.is_original(register), in_bounds)):
                store_vector(context, element_pointer(context, op.target, position), registers[register : register + width])


@lowers(AtomicUpdate)
def lower_atomic(context: Context, op: AtomicUpdate) -> None:
    """One relaxed atomic per element or vector."""
    dtype = op.tile.tile.dtype
    layout = op.tile.layout or Layout(op.tile.tile.rank, (), (), ())
    registers = context.registers(op.tile)
    box = Box(context, op.target, op.offsets, op.tile.tile.shape, layout)
    width = vector_length(layout, op.vector // dtype.bytes) if op.vector else 1
    if op.mask and not box.no_partial_access(width, rows_end_aligned=op.whole):
        width = 1
    with context.where(is_first_owner(context, layout)):
        for register in range(0, layout.num_registers, width):
            in_bounds = box.element_in_bounds(register) if op.mask else None
            with context.where(conjunction(context, box.coordinates.is_original(register), in_bounds)):
                _combine(context, op.kind, box.pointer(register), registers[register : register + width], dtype)


def _vector_width(op: Gather | Scatter | AtomicScatter, layout: Layout) -> int:
    """Elements at consecutive positions that a thread moves at once; 1 unless a pass has set vectors, and where a vector could
    lie partly outside the tensor."""
    if not op.vector or (op.clipped and not op.whole) or not op.tile.tile.rank:
        return 1
    width = vector_length(layout, op.vector // op.tile.tile.dtype.bytes)
    return width if op.tile.tile.shape[-1] % width == 0 else 1


def _combine(context: Context, kind: str, pointer: SsaValue, values: list[SsaValue], dtype: DType) -> None:
    if len(values) > 1:
        combine_vector(context, pointer, values, dtype)
    else:
        combine(context, kind, pointer, values[0], dtype)


@lowers(AtomicScatter)
def lower_atomic_scatter(context: Context, op: AtomicScatter) -> None:
    """One relaxed atomic per element or vector, by the first of the threads that have it; others, and skipped elements, have 0
    as the old value (`tilec.passes.schedule.layouts.shared_conversions` gives it to all). Like a vector of a box
    (`Box.no_partial_access`), one of consecutive positions lies entirely inside or outside where rows end at its multiples."""
    dtype, layout = op.tile.tile.dtype, op.tile.layout
    assert layout is not None
    values = context.registers(op.tile)
    compared = [None] * len(values) if op.compared is None else context.registers(op.compared)
    indices = [as_i64(context, index, context.registers(index)) for index in op.indices]
    coordinates = TileCoordinates(context, layout, op.tile.tile.shape)
    first = is_first_owner(context, layout)
    old: list[SsaValue] = []
    width = _vector_width(op, layout)
    for register in range(0, layout.num_registers, width):
        value = values[register]
        position = [axis[register] for axis in indices]
        in_bounds = element_in_bounds(context, op.target, position) if op.mask else None
        executes = conjunction(context, conjunction(context, first, coordinates.is_original(register)), in_bounds)

        def update(
            value: SsaValue = value, position: list[SsaValue] = position, other: SsaValue | None = compared[register]
        ) -> SsaValue:
            pointer = element_pointer(context, op.target, position)
            return old_value(context, op.kind, pointer, value, dtype, other)

        if op.results:
            old.append(update() if executes is None else context.choose(executes, update, lambda: literal(context, 0, dtype)))
        elif op.kind in BOX_KINDS:
            with context.where(executes):
                pointer = element_pointer(context, op.target, position)
                _combine(context, op.kind, pointer, values[register : register + width], dtype)
        else:
            with context.where(executes):
                update()
    if op.results:
        context.assign(op.result, old)
