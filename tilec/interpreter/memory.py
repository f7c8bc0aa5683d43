"""Memory operations on tensors: boxes and gathered elements, with padding and masks, or an error for an out-of-bounds
access."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

import numpy as np

from tilec.interpreter.accesses import Accesses
from tilec.interpreter.arithmetic import FLOAT_BINARY, INTEGER_BINARY
from tilec.interpreter.dtypes import Array, numpy_dtype
from tilec.interpreter.errors import InterpreterError
from tilec.ir.core import Op, Value
from tilec.ir.ops import AtomicScatter, AtomicUpdate, Gather, Load, Scatter, Store
from tilec.ir.ops.overlapping_ops import OverlappingLoad


class Memory(Protocol):
    """The interface of a block that memory operations use: tensors, operand values, errors, the access record."""

    block: tuple[int, ...]
    number: int
    accesses: Accesses | None

    def tensor(self, value: Value) -> tuple[str, Array]:
        """Name and array of a tensor parameter."""
        ...

    def value(self, value: Value) -> Array:
        """A computed value."""
        ...

    def error(self, op: Op, message: str) -> InterpreterError:
        """An error at an operation of this block."""
        ...


def load(memory: Memory, op: Load) -> Array:
    """Loads a box; elements outside the tensor are `pad`."""
    name, array = memory.tensor(op.source)
    inside, part = _box(memory, op, name, array, op.offsets, op.result.tile.shape, op.pad is not None)
    if memory.accesses is not None:
        memory.accesses.read(name, memory.number, inside)
    if op.pad is None:
        return array[inside].copy()
    tile = np.full(op.result.tile.shape, op.pad).astype(numpy_dtype(op.result.tile.dtype))
    tile[part] = array[inside]
    return tile


def store(memory: Memory, op: Store) -> None:
    """Stores a box; with `mask`, only the part inside the tensor."""
    name, array = memory.tensor(op.target)
    tile = memory.value(op.tile)
    inside, part = _box(memory, op, name, array, op.offsets, op.tile.tile.shape, op.mask)
    if memory.accesses is not None:
        memory.accesses.write(name, memory.number, inside)
    array[inside] = tile[part]


def atomic(memory: Memory, op: AtomicUpdate) -> None:
    """Combines the tile with a box; floats in f32, rounded once."""
    name, array = memory.tensor(op.target)
    tile = memory.value(op.tile)
    inside, part = _box(memory, op, name, array, op.offsets, op.tile.tile.shape, op.mask)
    if memory.accesses is not None:
        memory.accesses.write(name, memory.number, inside)
    is_float = op.tile.tile.dtype.is_float
    old, new = (x.astype(np.float32) if is_float else x for x in (array[inside], tile[part]))
    combine = FLOAT_BINARY if is_float else INTEGER_BINARY
    array[inside] = combine[op.kind](old, new).astype(array.dtype)


def atomic_scatter(memory: Memory, op: AtomicScatter) -> Array | None:
    """Combines one element per position, in row-major order of the tile; the old values, 0 where a position is skipped."""
    name, array = memory.tensor(op.target)
    index, inside = _element_indices(memory, op, name, array, op.indices, op.mask)
    if memory.accesses is not None:
        memory.accesses.write(name, memory.number, index)
    new = memory.value(op.tile)[inside]
    compared = None if op.compared is None else memory.value(op.compared)[inside]
    found = np.zeros(len(new), array.dtype)
    for turn in _turns(index, array.shape):
        where = tuple(axis[turn] for axis in index)
        found[turn] = array[where]
        array[where] = _combined(op, found[turn], new[turn], None if compared is None else compared[turn])
    if not op.results:
        return None
    old = np.zeros(op.tile.tile.shape, array.dtype)
    old[inside] = found
    return old


def _combined(op: AtomicScatter, old: Array, new: Array, compared: Array | None) -> Array:
    if compared is not None:
        return np.where(old == compared, new, old)
    if op.kind == "exch":
        return new
    if not op.tile.tile.dtype.is_float:
        return INTEGER_BINARY[op.kind](old, new).astype(old.dtype)
    return FLOAT_BINARY[op.kind](old.astype(np.float32), new.astype(np.float32)).astype(old.dtype)


def _turns(index: tuple[Array, ...], shape: tuple[int, ...]) -> list[Array]:
    """The positions in groups that each name no element twice: first the first ones of every element, then the second."""
    flat = np.ravel_multi_index(index, shape) if len(index[0]) else np.zeros(0, np.int64)
    order = np.argsort(flat, kind="stable")
    ordered = flat[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    turn = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
    return [order[turn == number] for number in range(int(turn.max(initial=-1)) + 1)]


def gather(memory: Memory, op: Gather) -> Array:
    """Loads one element per position; `pad` if the index is out of bounds."""
    name, array = memory.tensor(op.source)
    index, inside = _element_indices(memory, op, name, array, op.indices, op.pad is not None)
    if memory.accesses is not None:
        memory.accesses.read(name, memory.number, index)
    tile = np.full(op.result.tile.shape, 0 if op.pad is None else op.pad).astype(numpy_dtype(op.result.tile.dtype))
    tile[inside] = array[index]
    return tile


def scatter(memory: Memory, op: Scatter) -> None:
    """Stores one element per position; with `mask`, indices out of bounds are skipped."""
    name, array = memory.tensor(op.target)
    tile = memory.value(op.tile)
    index, inside = _element_indices(memory, op, name, array, op.indices, op.mask)
    if memory.accesses is not None:
        memory.accesses.write(name, memory.number, index)
    array[index] = tile[inside]


def _box(
    memory: Memory, op: Op, name: str, array: Array, offsets: list[Value], shape: tuple[int, ...], allow_out_of_bounds: bool
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """The part of the tensor covered by the box, as slices of the tensor and as slices of the box."""
    first = [int(memory.value(offset)) for offset in offsets]
    inside: list[slice] = []
    part: list[slice] = []
    for axis, (low, extent, size) in enumerate(zip(first, shape, array.shape, strict=True)):
        high = low + extent
        if not allow_out_of_bounds and (low < 0 or high > size):
            element = list(first)
            element[axis] = low if low < 0 else max(low, size)
            raise _out_of_bounds(memory, op, name, element, axis, size)
        begin, end = min(max(low, 0), size), min(max(high, 0), size)
        end = max(begin, end)
        inside.append(slice(begin, end))
        part.append(slice(begin - low, end - low) if end > begin else slice(0, 0))
    return tuple(inside), tuple(part)


def _element_indices(
    memory: Memory, op: Op, name: str, array: Array, indices: list[Value], allow_out_of_bounds: bool
) -> tuple[tuple[Array, ...], Array]:
    """Indices of the elements inside the tensor, and the mask of their positions in the tile."""
    tensor_indices = [np.asarray(memory.value(index)) for index in indices]
    inside = np.ones(tensor_indices[0].shape, bool)
    for axis, (index, size) in enumerate(zip(tensor_indices, array.shape, strict=True)):
        in_bounds = (index >= 0) & (index < size)
        if not allow_out_of_bounds and not in_bounds.all():
            position = np.argwhere(~in_bounds)[0]
            element = [int(axis_index[tuple(position)]) for axis_index in tensor_indices]
            raise _out_of_bounds(memory, op, name, element, axis, size)
        inside &= in_bounds
    return tuple(index[inside].astype(np.int64) for index in tensor_indices), inside


def _out_of_bounds(memory: Memory, op: Op, name: str, element: list[int], axis: int, size: int) -> InterpreterError:
    index = ", ".join(map(str, element))
    return memory.error(op, f"{op.opcode} touches `{name}[{index}]`, axis {axis} has {size} elements")


ACCESSES: Final[dict[type[Op], Callable[[Memory, Any], Array | None]]] = {
    Load: load, OverlappingLoad: load, Store: store, Gather: gather, Scatter: scatter, AtomicUpdate: atomic,
    AtomicScatter: atomic_scatter,
}  # fmt: skip
"""Interpretation of the operations that access memory."""
