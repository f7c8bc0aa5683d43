"""Reductions along one axis: over registers, then over lanes by shuffles, then over warps through shared memory.

Every thread that has an element of the result ends with the same value in any order of combination, including NaN and zeros of
either sign. No further communication is needed, and a branch on a result is uniform.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from operator import mul
from typing import Final

from tilec.ir.core import Value
from tilec.ir.layouts.layout import Digit, Layout
from tilec.ir.ops import Reduce
from tilec.ir.ops.reduction_ops import ReduceCombine, ReduceStore
from tilec.ir.types import DType, f32, i32
from tilec.lowering.arithmetic import binary, compared
from tilec.lowering.context import Context, literal, storage
from tilec.lowering.coordinates import TileCoordinates
from tilec.lowering.narrow_floats import narrowed, widened
from tilec.lowering.reduce_slots import Slots, apart, together
from tilec.lowering.rules import lowers
from tilec.mlir import types as mlir
from tilec.mlir.types import SsaValue, i64

NO_POSITION: Final = 2**31 - 1
"""A position past every tile."""

MANY: Final = 64
"""Elements of a thread that are combined in chains: a thread has so many of a row in tensor memory."""
CHAINS: Final = 4
"""An instruction takes about as many cycles until another one can use its result."""

FEW_RESULTS: Final = 4
"""Results of a thread up to which their places are side by side, which needs the fewest addresses."""
MANY_RESULTS: Final = 8
"""The same outside of loops, where threads pass them once."""

Reduction = Reduce | ReduceStore | ReduceCombine
Parts = tuple[SsaValue, ...]  # the value, and for argmax and argmin its position


@lowers(Reduce)
def lower_reduce(context: Context, op: Reduce) -> None:
    """Along an axis that lies within warps."""
    _assign_results(context, op, op.operands[0], _reduce_within_warps(context, op, op.operands[0]))


@lowers(ReduceStore)
def lower_reduce_store(context: Context, op: ReduceStore) -> None:
    """Every thread stores the partial results of its warp in its own slots of scratch."""
    scratch, source = op.operands
    results = _reduce_within_warps(context, op, source)
    slots = _slots(context, op, source)
    pointer = context.scratch(scratch, slots.bytes)
    thread = context.thread()
    lane, warp = context.bit_and(thread, 31), context.lshr(thread, 5)
    context.assign(scratch, [pointer, lane, warp])
    own = context.offset(pointer, context.mul(thread, slots.step))
    slots.store(context, own, [value for parts in results for value in parts])


@lowers(ReduceCombine)
def lower_reduce_combine(context: Context, op: ReduceCombine) -> None:
    """Every thread loads and combines the partial results of all warps along the axis. Lanes along the axis have equal results;
    if there are several, all these lanes read those of the first, at the same addresses."""
    scratch, source = op.operands
    layout = source.layout
    assert layout is not None
    pointer, lane, warp = context.registers(scratch)
    dtype, slots = _compute_dtype(source.tile.dtype), _slots(context, op, source)
    warp_offsets = [0]
    for digit, weight in _weighted(layout.warps):
        if digit.axis == op.axis:
            warp_offsets = [warp_offset + weight * i for i in range(digit.extent) for warp_offset in warp_offsets]
    first_warp = _at_start(context, warp, layout.warps, op.axis)
    first_thread = context.mul(first_warp, 32) if first_warp is not None else None
    thread = _at_start(context, lane, layout.lanes, op.axis) if slots.are_apart else lane
    if thread is not None and first_thread is not None:
        thread = context.add(thread, first_thread)
    thread = thread if thread is not None else first_thread
    base = pointer if thread is None else context.offset(pointer, context.mul(thread, slots.step))
    results: list[Parts] = []
    for group in slots.groups():
        totals: list[Parts] = []
        for warp_offset in sorted(warp_offsets):
            loaded = slots.load(context, base, group, 32 * warp_offset)
            parts = [tuple(loaded[first : first + slots.parts]) for first in range(0, len(loaded), slots.parts)]
            totals = [_combine(context, op.kind, *pair, dtype) for pair in zip(totals, parts, strict=True)] if totals else parts
        results += totals
    _assign_results(context, op, source, results)


def _slots(context: Context, op: Reduction, source: Value) -> Slots:
    """Where the threads of the block keep the partial results."""
    layout, value = source.layout, storage(_compute_dtype(source.tile.dtype))
    assert layout is not None
    results = prod(digit.extent for digit in layout.registers if digit.axis not in (None, op.axis))
    parts = (value, mlir.i32) if op.kind.startswith("arg") else (value,)
    is_apart = results > MANY_RESULTS or (results > FEW_RESULTS and context.is_repeated(op))
    return apart(parts, results, context.threads) if is_apart else together(parts, results, context.threads)


def _weighted(digits: Sequence[Digit]) -> list[tuple[Digit, int]]:
    """Each digit of an index and how much the index grows with it."""
    weights = accumulate((digit.extent for digit in digits), mul, initial=1)
    return list(zip(digits, weights, strict=False))


def _at_start(context: Context, index: SsaValue, digits: Sequence[Digit], axis: int) -> SsaValue | None:
    """A lane or warp index with the digits of an axis set to zero; None if it has no others."""
    found = None
    for digit, weight in _weighted(digits):
        if digit.axis != axis:
            part = context.mul(context.urem(context.udiv(index, weight), digit.extent), weight)
            found = part if found is None else context.add(found, part)
    return found


def _compute_dtype(dtype: DType) -> DType:
    """The dtype of the computation: f32 for all floats, so sums accumulate in f32."""
    return f32 if dtype.is_float else dtype


def _reduce_within_warps(context: Context, op: Reduction, source: Value) -> list[Parts]:
    """The partial result of this warp for each element of the result that this thread has."""
    layout = source.layout
    assert layout is not None
    dtype = source.tile.dtype
    registers = context.registers(source)
    compute_dtype = _compute_dtype(dtype)
    if dtype.is_float:
        registers = [widened(context, value, dtype) for value in registers]
    positional = op.kind.startswith("arg")
    if op.kind == "sum":
        registers = _zero_copies(context, op.axis, source, registers, compute_dtype)
    groups: dict[tuple[int, ...], list[tuple[int, SsaValue]]] = {}  # (offset along the axis, register)
    for register, value in enumerate(registers):
        coordinates = layout.coordinates(register, 0, 0)
        groups.setdefault(coordinates[: op.axis] + coordinates[op.axis + 1 :], []).append((coordinates[op.axis], value))
    origin = context.thread_coordinates(layout)[op.axis] if positional else None
    results = [_reduce_in_thread(context, op.kind, group, origin, compute_dtype) for group in groups.values()]
    return [_reduce_across_lanes(context, op, layout, parts, compute_dtype) for parts in results]


def _assign_results(context: Context, op: Reduction, source: Value, results: list[Parts]) -> None:
    """Assigns the complete results, converted to the result's dtype."""
    dtype = source.tile.dtype
    positional, compute_dtype = op.kind.startswith("arg"), _compute_dtype(dtype)
    registers = [parts[-1] for parts in results]
    if positional and compute_dtype.is_float:  # if all elements are NaN, none equals the best
        zero = context.constant(0)
        registers = [
            context.select(compared(context, "ne", best, best, compute_dtype), zero, position) for best, position in results
        ]
    if compute_dtype != dtype and not positional:
        registers = [narrowed(context, value, dtype) for value in registers]
    context.assign(op.result, registers)


def _zero_copies(context: Context, axis: int, source: Value, registers: list[SsaValue], dtype: DType) -> list[SsaValue]:
    """The operands of a sum, with wrapped copies replaced by zero. The other reductions are idempotent, and argmax and argmin
    use the lowest index."""
    assert source.layout is not None
    coordinates = TileCoordinates(context, source.layout, source.tile.shape)
    past_end = [coordinates.past_end(axis, coordinates.steps(register)[axis]) for register in range(len(registers))]
    if not any(past_end):
        return registers
    neutral = literal(context, -0.0 if dtype.is_float else 0, dtype)  # -0.0 is the identity of addition for either sign of zero
    return [
        context.select(is_copy, neutral, value) if is_copy else value
        for value, is_copy in zip(registers, past_end, strict=True)
    ]


def _combine(context: Context, kind: str, left: Parts, right: Parts, dtype: DType) -> Parts:
    """Combines two partial results; commutative. For argmax and argmin, the index of the better value is kept, and the lowest
    on a tie: both values are compared with the better one, and a NaN never equals it, so a NaN never beats a number."""
    if len(left) == 1:
        return (binary(context, {"sum": "add"}.get(kind, kind), left[0], right[0], dtype),)
    better = binary(context, kind.removeprefix("arg"), left[0], right[0], dtype)
    no_position = context.constant(NO_POSITION)
    positions = [
        context.select(compared(context, "eq", value, better, dtype), position, no_position)
        for value, position in (left, right)
    ]
    return better, binary(context, "min", positions[0], positions[1], i32)


def _reduce_in_thread(
    context: Context, kind: str, group: list[tuple[int, SsaValue]], origin: SsaValue | None, dtype: DType
) -> Parts:
    """Combines one thread's elements of an axis; if `origin` is given, indices count from it, the first element's index. Many
    elements are combined in several chains, whose instructions do not wait for each other."""
    chains = CHAINS if len(group) >= MANY else 1
    parts = [value for _, value in group[:chains]]
    for number, (_, value) in enumerate(group[chains:]):
        (parts[number % chains],) = _combine(context, kind.removeprefix("arg"), (parts[number % chains],), (value,), dtype)
    best, *others = parts
    for value in others:
        (best,) = _combine(context, kind.removeprefix("arg"), (best,), (value,), dtype)
    if origin is None:
        return (best,)
    *before, (last, _) = sorted(group, key=lambda pair: pair[0])
    position = context.constant(last)
    for index, value in reversed(before):
        position = context.select(compared(context, "eq", value, best, dtype), context.constant(index), position)
    return best, context.add(origin, position)


def _reduce_across_lanes(context: Context, op: Reduction, layout: Layout, parts: Parts, dtype: DType) -> Parts:
    weight = 1
    for digit in layout.lanes:
        step = 1
        while digit.axis == op.axis and step < digit.extent:
            other = tuple(_shuffle(context, value, weight * step) for value in parts)
            parts = _combine(context, op.kind, parts, other, dtype)
            step *= 2
        weight *= digit.extent
    return parts


def _shuffle(context: Context, value: SsaValue, mask: int) -> SsaValue:
    """The value of the lane whose index differs in the bits of `mask` (butterfly shuffle)."""
    if value.type is i64:
        low = context.trunc(value, mlir.i32)
        high = context.trunc(context.lshr(value, 32), mlir.i32)
        wide = [context.zext(_shuffle(context, half, mask), i64) for half in (low, high)]
        return context.bit_or(wide[0], context.shl(wide[1], 32))
    if value.type in (mlir.i32, mlir.f32):
        return context.shuffle(value, mask)
    return context.trunc(context.shuffle(context.zext(value, mlir.i32), mask), value.type)
