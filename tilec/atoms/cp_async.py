"""Asynchronous copies of boxes of a tensor into shared memory with zero fill out of bounds (PTX ISA, `cp.async`).

Global addresses are 64-bit, shared ones 32-bit offsets from the dynamic shared memory. Available on every target.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from tilec.ir.types import DType, SharedType
from tilec.mlir.builder import Builder
from tilec.mlir.types import SsaValue, i32, i64


class Edge(Protocol):
    """A tensor coordinate from which bounds checks are computed (`tilec.lowering.positions`)."""

    @property
    def value(self) -> SsaValue:
        """The coordinate as an i32 or i64."""
        ...

    def moved(self, out: Builder, step: SsaValue) -> Edge:
        """The coordinate plus `step` (i32)."""
        ...

    def below(self, out: Builder, extent: SsaValue) -> SsaValue:
        """Whether the coordinate is at least 0 and below `extent` (i32)."""
        ...

    def extent(self, out: Builder, extent: SsaValue) -> SsaValue:
        """`extent` (i32) converted to the coordinate's type."""
        ...


@dataclass(frozen=True, slots=True)
class Edges:
    """Bounds of a box: `row`, `column` are its coordinates on the two axes that it spans, `row_extent`, `column_extent` (i32)
    the tensor's extents there; `in_bounds` (i1) is the bounds check of the other axes, None if there are none. `whole`: the
    tensor's rows are multiples of the copy size, so each copy is entirely in or out of bounds."""

    row: Edge
    column: Edge
    row_extent: SsaValue
    column_extent: SsaValue
    in_bounds: SsaValue | None = None
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Box:
    """The box of a tensor that a copy reads: `pointer` to its first element, `row_stride` (i64, bytes), and `edges` if parts of
    it may be out of bounds."""

    pointer: SsaValue
    row_stride: SsaValue
    edges: Edges | None = None


def proxy_fence(out: Builder) -> None:
    """Make this thread's writes and copies to shared memory visible to the async proxy (PTX ISA, `fence.proxy.async`)."""
    out.inline_ptx("fence.proxy.async.shared::cta;", "~{memory}", side_effects=True)


def async_copy(out: Builder, box: Box, type: SharedType, stage: SsaValue, thread: SsaValue, threads: int, vector: int) -> None:
    """Copy a box into the stage at shared pointer `stage`, `vector` bytes per thread and step; out-of-bounds elements are zero.

    `thread` is the thread's index as i32. Consecutive threads copy consecutive addresses of a row.
    """
    per_row = type.shape[1] * type.dtype.bytes // vector
    total = type.shape[0] * per_row
    aligned = threads % per_row == 0
    for first in range(0, total, threads):
        if aligned:
            row = out.add(out.udiv(thread, per_row), first // per_row)
            chunk = out.urem(thread, per_row)
            fixed_row = first // per_row
        else:
            index = out.add(thread, first)
            row, chunk = out.udiv(index, per_row), out.urem(index, per_row)
            fixed_row = 0
        byte = out.mul(chunk, vector)
        target = out.offset(stage, shared_offset(out, type, row, byte))
        thread_row = out.udiv(thread, per_row) if aligned else row
        source = _source(out, box, thread_row, fixed_row, byte)
        if box.edges is None:
            with _first_threads(out, thread, threads, total - first):
                _copy(out, target, source, vector, None)
            continue
        column = box.edges.column.moved(out, out.udiv(byte, type.dtype.bytes))
        in_bounds = _in_bounds(out, box.edges, row, column)
        with _first_threads(out, thread, threads, total - first):
            if box.edges.whole:
                _copy_or_zero(out, target, source, vector, in_bounds)
            else:
                _copy(out, target, source, vector, _copied_bytes(out, box.edges, type.dtype, column, in_bounds, vector))


def _first_threads(out: Builder, thread: SsaValue, threads: int, count: int) -> AbstractContextManager[None]:
    """Predicate the operations emitted inside on the first `count` threads."""
    return out.where(None if threads <= count else out.compare("ult", thread, out.constant(count)))


def shared_offset(out: Builder, type: SharedType, row: SsaValue, byte: SsaValue) -> SsaValue:
    """Offset within a stage of byte `byte` of row `row`: `SharedType.offset` in SSA form."""
    row_offset = out.mul(row, type.pitch)
    if not type.swizzle_mask:
        return out.add(row_offset, byte)
    phase = out.bit_and(out.lshr(row, type.swizzle_shift), type.swizzle_mask)
    return out.add(row_offset, out.bit_xor(byte, out.shl(phase, 4)))


def _source(out: Builder, box: Box, row: SsaValue, fixed_row: int, byte: SsaValue) -> SsaValue:
    # The thread's part is added first: it is loop-invariant, and the constant part is the same for all threads.
    wide_row, wide_byte = out.zext(row, i64), out.zext(byte, i64)
    pointer = out.offset(box.pointer, out.add(out.mul(wide_row, box.row_stride), wide_byte))
    if fixed_row:
        pointer = out.offset(pointer, out.mul(box.row_stride, fixed_row))
    return pointer


def _in_bounds(out: Builder, edges: Edges, row: SsaValue, column: Edge) -> SsaValue:
    """Whether row `row` of the box (i32) and column `column` of the tensor are in bounds. Columns are multiples of the vector,
    so a copy that starts before column 0 is entirely out of bounds."""
    row_in_bounds = edges.row.moved(out, row).below(out, edges.row_extent)
    column_in_bounds = column.below(out, edges.column_extent)
    if edges.in_bounds:
        column_in_bounds = out.bit_and(column_in_bounds, edges.in_bounds)
    return out.bit_and(row_in_bounds, column_in_bounds)


def _copied_bytes(out: Builder, edges: Edges, dtype: DType, column: Edge, in_bounds: SsaValue, vector: int) -> SsaValue:
    """How many of the `vector` bytes are in bounds (i32)."""
    remaining = out.sub(column.extent(out, edges.column_extent), column.value)
    full = out.constant(vector // dtype.bytes, remaining.type)
    elements = out.select(out.compare("slt", remaining, full), remaining, full)
    if elements.type is i64:
        elements = out.trunc(elements, i32)
    return out.select(in_bounds, out.mul(elements, dtype.bytes), out.constant(0))


def _copy_or_zero(out: Builder, target: SsaValue, source: SsaValue, vector: int, in_bounds: SsaValue) -> None:
    """A copy that writes zeros and reads nothing if `in_bounds` is false (PTX ISA, `cp.async`, "ignore-src"). Inline PTX,
    because the intrinsic has a variable source size instead, for which addresses are corrected at run time."""
    cache = "cg" if vector == 16 else "ca"
    text = f"{{ .reg .pred q; not.pred q, $2; cp.async.{cache}.shared.global [$0], [$1], {vector}, q; }}"
    out.inline_ptx(text, "l,l,b,~{memory}", [target, source, in_bounds], side_effects=True)


def _copy(out: Builder, target: SsaValue, source: SsaValue, vector: int, size: SsaValue | None) -> None:
    name = f"cp.async.{'cg' if vector == 16 else 'ca'}.shared.global.{vector}"
    if size is None:
        out.instruction(name, [target, source])
    else:
        out.instruction(f"{name}.s", [target, source, size])
