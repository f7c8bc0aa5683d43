"""Warp-wide instructions: shfl.sync, vote.sync, match.sync, redux.sync, activemask, elect.sync, bar.warp.sync (PTX ISA,
sections 9.7.9.6, 9.7.13).

A step sees, for each warp of the frame, every thread of the member mask that has not exited (`convergence`). shfl, vote and
match do not order memory; bar.warp.sync does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.errors import POISON, Lanes, Poison
from tilec.emulator.instructions.convergence import ALL, converge
from tilec.emulator.machine.frame import Frame, union
from tilec.emulator.machine.lanes import where
from tilec.emulator.machine.registry import Decoder, control, lanewise
from tilec.emulator.machine.sources import Step
from tilec.emulator.ptx.syntax import Pair


def rows(frame: Frame) -> NDArray[np.int64]:
    """[warps of the frame, 32]: the position in the frame of each lane of each warp, -1 if it is not in the frame."""
    if frame.whole_warps and frame.wave.threads % 32 == 0:
        return np.arange(frame.n).reshape(-1, 32)
    warps, inverse = np.unique(frame.warp, return_inverse=True)
    found = np.full((len(warps), 32), -1, np.int64)
    found[inverse, frame.lane_in_warp] = np.arange(frame.n)
    return found


def neighbour(frame: Frame, source_lane: Lanes) -> NDArray[np.int64]:
    """The position in the frame of lane `source_lane` of each lane's own warp, -1 if that lane is not in the frame."""
    if frame.whole_warps and frame.wave.threads % 32 == 0:
        return np.arange(frame.n) // 32 * 32 + source_lane
    table = rows(frame)
    _, inverse = np.unique(frame.warp, return_inverse=True)
    return table[inverse, source_lane]


@control("shfl")
def shfl(d: Decoder) -> Step:
    d.need("sync")
    mode = d.need("up", "down", "bfly", "idx")
    d.need("b32")
    d.finish(5)
    result = d.operands[0]
    write = d.target(result.first if isinstance(result, Pair) else result, "b32")
    write_valid = d.target(result.second, "pred") if isinstance(result, Pair) else None
    value, by, bounds, members = d.source(1, "b32"), d.source(2, "u32"), d.source(3, "u32"), d.source(4, "b32")
    machine = d.machine

    def body(frame: Frame) -> None:
        lane = frame.lane_in_warp
        offset = np.asarray(by.value(frame)).astype(np.int64) & 31
        c = np.asarray(bounds.value(frame)).astype(np.int64)
        segment, clamp = (c >> 8) & 31, c & 31
        wanted, valid = _source_lane(mode, lane, offset, segment, clamp)
        source = where(valid, wanted, lane)
        position = neighbour(frame, source)
        absent = np.asarray(position < 0)
        mask = np.broadcast_to(members.value(frame), frame.n)
        absent |= (mask >> source.astype(np.uint32) & np.uint32(1)) == 0
        position = np.where(absent, 0, position)
        data, poison = np.broadcast_to(value.value(frame), frame.n), value.poison(frame)
        moved: Poison | None = None if poison is None else poison[position]
        if absent.any():
            moved = union(moved, np.where(absent, POISON, 0).astype(np.uint8))
        for operand in (by.poison(frame), bounds.poison(frame)):
            moved = union(moved, operand)
        if moved is not None and not moved.any():
            moved = None
        write(frame, data[position], moved)
        if write_valid is not None:
            write_valid(frame, np.broadcast_to(valid, frame.n).copy(), None)

    del machine
    return converge(d, body, members)


def _source_lane(mode: str, lane: Any, offset: Any, segment: Any, clamp: Any) -> tuple[Any, Any]:
    """The lane to read and whether it is in range, by the pseudocode of shfl.sync."""
    highest = (lane & segment) | (clamp & ~segment)
    lowest = lane & segment
    if mode == "up":
        source = lane - offset
        return source, source >= highest
    if mode == "down":
        source = lane + offset
    elif mode == "bfly":
        source = lane ^ offset
    else:
        source = lowest | (offset & ~segment)
    return source, source <= highest


@control("vote")
def vote(d: Decoder) -> Step:
    d.need("sync")
    mode = d.need("all", "any", "uni", "ballot")
    d.need("b32" if mode == "ballot" else "pred")
    d.finish(3)
    condition, members = d.source(1, "pred"), d.source(2, "b32")
    write = d.target(0, "b32" if mode == "ballot" else "pred")

    def body(frame: Frame) -> None:
        table = rows(frame)
        data = np.broadcast_to(condition.value(frame), frame.n)
        mask = np.broadcast_to(members.value(frame), frame.n)
        votes = ballot(table, data)
        present = ballot(table, np.ones(frame.n, np.bool_))
        _, back = np.unique(frame.warp, return_inverse=True)
        mine, here = votes[back] & mask, present[back] & mask
        results = {"ballot": mine, "any": mine != 0, "all": mine == here, "uni": (mine == here) | (mine == 0)}
        poison = condition.poison(frame)
        if poison is not None:
            poison = shared_poison(table, poison)[back]
        write(frame, results[mode], poison)

    return converge(d, body, members)


def ballot(table: NDArray[np.int64], data: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """One bit per lane for each warp of `rows`."""
    bits = np.where(table >= 0, data[np.where(table >= 0, table, 0)], False)
    return (bits.astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(axis=1).astype(np.uint32)


def shared_poison(table: NDArray[np.int64], poison: Poison) -> NDArray[np.uint8]:
    """The union of poison over each warp of `rows`."""
    return np.bitwise_or.reduce(np.where(table >= 0, poison[np.where(table >= 0, table, 0)], 0), axis=1).astype(np.uint8)


@control("match")
def match(d: Decoder) -> Step:
    mode = d.need("any", "all")
    d.need("sync")
    kind = d.need("b32", "b64")
    d.finish(3)
    result = d.operands[0]
    if isinstance(result, Pair) and mode == "any":
        raise d.unsupported("two results")
    write = d.target(result.first if isinstance(result, Pair) else result, "b32")
    write_all = d.target(result.second, "pred") if isinstance(result, Pair) else None
    value, members = d.source(1, kind), d.source(2, "b32")

    def body(frame: Frame) -> None:
        table = rows(frame)
        _, back = np.unique(frame.warp, return_inverse=True)
        data = np.broadcast_to(value.value(frame), frame.n)
        mask = np.broadcast_to(members.value(frame), frame.n)
        present = ballot(table, np.ones(frame.n, np.bool_))[back] & mask
        same = np.zeros(frame.n, np.uint32)
        for k in range(32):
            position = table[back, k]
            equal = (position >= 0) & (data[np.where(position >= 0, position, 0)] == data)
            same |= np.where(equal, np.uint32(1 << k), np.uint32(0))
        same &= mask
        poison = value.poison(frame)
        if poison is not None:
            poison = shared_poison(table, poison)[back]
        agreed = same == present
        write(frame, same if mode == "any" else np.where(agreed, present, np.uint32(0)), poison)
        if write_all is not None:
            write_all(frame, agreed, poison)

    return converge(d, body, members)


@control("redux")
def redux(d: Decoder) -> Step:
    d.need("sync")
    operation = d.need("add", "min", "max", "and", "or", "xor")
    absolute, keeps_nan = operation in ("min", "max") and d.flag("abs"), operation in ("min", "max") and d.flag("NaN")
    kinds = {"add": ("u32", "s32"), "min": ("u32", "s32", "f32"), "max": ("u32", "s32", "f32")}.get(operation, ("b32",))
    kind = d.need(*kinds)
    if kind != "f32" and (absolute or keeps_nan):
        raise d.unsupported(".abs and .NaN are for .f32")
    d.finish(3)
    value, members, write = d.source(1, kind), d.source(2, "b32"), d.target(0, kind)
    floats: dict[str, Any] = {"min": np.minimum if keeps_nan else np.fmin, "max": np.maximum if keeps_nan else np.fmax}
    function: Any = (
        floats[operation]
        if kind == "f32"
        else {
            "add": np.add,
            "min": np.minimum,
            "max": np.maximum,
            "and": np.bitwise_and,
            "or": np.bitwise_or,
            "xor": np.bitwise_xor,
        }[operation]
    )

    def body(frame: Frame) -> None:
        data = np.broadcast_to(value.value(frame), frame.n)
        data = np.abs(data) if absolute else data
        mask = np.broadcast_to(members.value(frame), frame.n)
        total = np.zeros(frame.n, data.dtype)
        groups = np.stack([frame.warp, mask.astype(np.int64)])
        _, back = np.unique(groups, axis=1, return_inverse=True)
        back = back.reshape(-1)
        poison = value.poison(frame)
        spread = None if poison is None else np.zeros(frame.n, np.uint8)
        for group in range(int(back.max()) + 1):
            here = back == group
            total[here] = function.reduce(data[here], dtype=data.dtype)
            if poison is not None and spread is not None:
                spread[here] = np.bitwise_or.reduce(poison[here])
        write(frame, total, spread)

    return converge(d, body, members)


@lanewise("activemask")
def activemask(d: Decoder) -> Step:
    d.need("b32")
    d.finish(1)
    write = d.target(0, "b32")

    def step(frame: Frame) -> None:
        _, back = np.unique(frame.warp, return_inverse=True)
        active = np.ones(frame.n, np.bool_) if frame.mask is None else frame.mask
        write(frame, ballot(rows(frame), active)[back], None)

    return step


@control("elect")
def elect(d: Decoder) -> Step:
    """Elects the lowest member present."""
    d.need("sync")
    d.finish(2)
    result = d.operands[0]
    if not isinstance(result, Pair):
        raise d.unsupported("elect.sync needs two results")
    write, write_leads = d.target(result.first, "b32"), d.target(result.second, "pred")
    members = d.source(1, "b32")

    def body(frame: Frame) -> None:
        _, back = np.unique(frame.warp, return_inverse=True)
        mask = np.broadcast_to(members.value(frame), frame.n)
        present = ballot(rows(frame), np.ones(frame.n, np.bool_))[back] & mask
        lowest = present & (~present + np.uint32(1))
        leader = np.log2(np.maximum(lowest, 1)).astype(np.uint32)
        write(frame, leader, None)
        write_leads(frame, leader == frame.lane_in_warp, None)

    return converge(d, body, members)


def warp_barrier(d: Decoder) -> Step:
    """bar.warp.sync: a barrier with memory ordering among the members."""
    d.finish(1)
    members, machine = d.source(0, "b32"), d.machine

    def body(frame: Frame) -> None:
        clocks = machine.ordering.clocks
        mask = np.broadcast_to(members.value(frame), frame.n)
        if frame.whole_warps and (mask == ALL).all():
            clocks.warp_barrier(np.unique(frame.warp))
            return
        keys = np.stack([frame.warp, mask.astype(np.int64)])
        _, back = np.unique(keys, axis=1, return_inverse=True)
        for group in range(int(back.max()) + 1):
            lanes = frame.lanes[back.reshape(-1) == group]
            clocks.acquire(lanes, clocks.release(lanes))

    return converge(d, body, members)
