"""Reductions of one axis: registers first, then lanes by shuffles, then warps through shared memory.

Every thread that holds an element of the result ends with the same value whatever the order, NaN and zeros of either sign
included, so no further exchange is needed and branches on a result are taken by all threads or none.
"""

from __future__ import annotations

from typing import Final

from tilec.ir.layout import Layout
from tilec.ir.ops import Reduce
from tilec.ir.types import DType, f32, i32
from tilec.lowering.arithmetic import binary, compared
from tilec.lowering.context import Context, storage
from tilec.lowering.narrow_floats import narrowed, widened
from tilec.lowering.tensor_core import SHARED, arith, number, offset_pointer, select

NONE: Final = 2**31 - 1
"""A position past every tile."""

Parts = tuple[str, ...]  # the value, and for argmax and argmin its position


def lower_reduce(context: Context, op: Reduce) -> None:
    """Float sums accumulate in f32 whatever the tile's dtype."""
    source = op.operands[0]
    layout = source.layout
    assert layout is not None
    dtype = source.tile.dtype
    held = context.registers(source)
    work = dtype
    if dtype.is_float:
        held = [widened(context, name, dtype) for name in held]
        work = f32
    positional = op.kind.startswith("arg")
    groups: dict[tuple[int, ...], list[tuple[int, str]]] = {}  # place on the axis past this thread's first, and register
    for register, name in enumerate(held):
        place = layout.coordinates(register, 0, 0)
        groups.setdefault(place[: op.axis] + place[op.axis + 1 :], []).append((place[op.axis], name))
    own = context.thread_coordinates(layout)[op.axis] if positional else ""
    results = [_in_thread(context, op.kind, group, own, work) for group in groups.values()]
    results = [_across_lanes(context, op, layout, parts, work) for parts in results]
    results = _across_warps(context, op, layout, results, work)
    names = [parts[-1] for parts in results]
    if positional and work.is_float:  # where all are NaN, nothing was the best
        zero = number(context, 0)
        names = [select(context, compared(context, "ne", best, best, work), zero, place) for best, place in results]
    if work != dtype and not positional:
        names = [narrowed(context, name, dtype) for name in names]
    context.assign(op.result, names)


def _combine(context: Context, kind: str, left: Parts, right: Parts, dtype: DType) -> Parts:
    """The same for either order of the two. Of positions, those of the better value stay, and of them the lowest: both are
    taken against the better of the two values, which no NaN equals, so that a NaN never wins over a number."""
    if len(left) == 1:
        return (binary(context, {"sum": "add"}.get(kind, kind), left[0], right[0], dtype),)
    better = binary(context, kind.removeprefix("arg"), left[0], right[0], dtype)
    none = number(context, NONE)
    places = [select(context, compared(context, "eq", value, better, dtype), place, none) for value, place in (left, right)]
    return better, binary(context, "min", places[0], places[1], i32)


def _in_thread(context: Context, kind: str, group: list[tuple[int, str]], own: str, dtype: DType) -> Parts:
    """What one thread holds of an axis, combined; positions count from `own`, that of its first element."""
    best = group[0][1]
    for _, value in group[1:]:
        (best,) = _combine(context, kind.removeprefix("arg"), (best,), (value,), dtype)
    if not kind.startswith("arg"):
        return (best,)
    *before, (last, _) = sorted(group)
    place = number(context, last)
    for step, value in reversed(before):
        place = select(context, compared(context, "eq", value, best, dtype), number(context, step), place)
    return best, arith(context, "add", own, place)


def _across_lanes(context: Context, op: Reduce, layout: Layout, parts: Parts, dtype: DType) -> Parts:
    position = 1
    for digit in layout.lanes:
        step = 1
        while digit.axis == op.axis and step < digit.extent:
            other = tuple(
                _shuffle(context, name, position * step, storage(dtype) if i == 0 else "i32") for i, name in enumerate(parts)
            )
            parts = _combine(context, op.kind, parts, other, dtype)
            step *= 2
        position *= digit.extent
    return parts


def _shuffle(context: Context, name: str, mask: int, type_: str) -> str:
    """The value of the lane whose index differs in the bits of `mask` (PTX ISA, `shfl.sync.bfly`)."""
    if type_ == "i64":
        low = context.value(f"llvm.trunc {name} : i64 to i32")
        high = context.value(f"llvm.trunc {arith(context, 'lshr', name, 32, 'i64')} : i64 to i32")
        wide = [context.value(f"llvm.zext {_shuffle(context, half, mask, 'i32')} : i32 to i64") for half in (low, high)]
        return context.value(f"llvm.or {wide[0]}, {arith(context, 'shl', wide[1], 32, 'i64')} : i64")
    small = type_ not in ("i32", "f32")
    if small:
        name = context.value(f"llvm.zext {name} : {type_} to i32")
    members, offset, clamp = number(context, -1), number(context, mask), number(context, 31)
    lane_type = "i32" if small else type_
    moved = context.value(f"nvvm.shfl.sync bfly {members}, {name}, {offset}, {clamp} : {lane_type} -> {lane_type}")
    return context.value(f"llvm.trunc {moved} : i32 to {type_}") if small else moved


def _across_warps(context: Context, op: Reduce, layout: Layout, results: list[Parts], dtype: DType) -> list[Parts]:
    if all(digit.axis != op.axis or digit.extent == 1 for digit in layout.warps):
        return results
    width = 8  # bytes kept per value, wide enough for every dtype
    count = len(results) * len(results[0])
    scratch = context.scratch(context.threads * count * width)
    thread = context.thread()
    lane, warp = arith(context, "and", thread, 31), arith(context, "lshr", thread, 5)
    own = offset_pointer(context, scratch, arith(context, "mul", thread, count * width), SHARED)
    types = [storage(dtype), "i32"]
    for slot, parts in enumerate(results):
        for which, name in enumerate(parts):
            pointer = offset_pointer(context, own, (slot * len(parts) + which) * width, SHARED)
            value, type_ = (
                (name, types[which]) if types[which] != "i1" else (context.value(f"llvm.zext {name} : i1 to i8"), "i8")
            )
            context.effect(f"llvm.store {value}, {pointer} : {type_}, {SHARED}")
    context.barrier()
    # This thread's warp index with the digits of the axis set to zero, then every combination of them.
    fixed, position, steps = None, 1, [0]
    for digit in layout.warps:
        if digit.axis == op.axis:
            steps = [step + position * i for i in range(digit.extent) for step in steps]
        else:
            index = arith(context, "urem", arith(context, "udiv", warp, position), digit.extent)
            part = arith(context, "mul", index, position)
            fixed = part if fixed is None else arith(context, "add", fixed, part)
        position *= digit.extent
    first = arith(context, "mul", fixed, 32) if fixed is not None else None
    base_thread = arith(context, "add", lane, first) if first is not None else lane
    base = offset_pointer(context, scratch, arith(context, "mul", base_thread, count * width), SHARED)
    out: list[Parts] = []
    for slot, parts in enumerate(results):
        total: Parts | None = None
        for step in sorted(steps):
            loaded: list[str] = []
            for which in range(len(parts)):
                offset = step * 32 * count * width + (slot * len(parts) + which) * width
                pointer = offset_pointer(context, base, offset, SHARED)
                loaded.append(context.value(f"llvm.load {pointer} : {SHARED} -> {types[which]}"))
            total = tuple(loaded) if total is None else _combine(context, op.kind, total, tuple(loaded), dtype)
        assert total is not None
        out.append(total)
    return out
