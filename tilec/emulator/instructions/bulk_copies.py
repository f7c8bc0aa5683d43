"""`cp.async.bulk` and `cp.async.bulk.tensor`: copies by the bulk engine, through the async proxy.

PTX ISA, "Data movement and conversion instructions: bulk copies" and "tensor copies". A copy to shared memory counts bytes on
an mbarrier; its destination is in flight until a thread has observed the completion of that phase. A copy to global memory
belongs to a bulk group of its thread: its source is in flight until a wait on the group (`.read`), its destination until the
group is complete. Source bytes are read when the copy is issued. im2col and reductions are not emulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.instructions.bulk_stores import Stores
from tilec.emulator.instructions.bulk_transfers import Bytes, Index, Transfer, by_granule
from tilec.emulator.instructions.load_starts import check_proxy, check_write, granules_of, start
from tilec.emulator.instructions.mbarrier_state import Record
from tilec.emulator.instructions.memory import state_space
from tilec.emulator.instructions.multicast import Destination, several, single
from tilec.emulator.instructions.operands import poison_of
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.machine import Machine
from tilec.emulator.machine.memory import GLOBAL_BASE
from tilec.emulator.machine.registry import Decoder
from tilec.emulator.machine.sources import Source, Step
from tilec.emulator.matrices.tensor_maps import MAP_BYTES, TensorMap, box_addresses
from tilec.emulator.ordering.in_flight import NOTHING
from tilec.emulator.ptx.syntax import Vector

BOX_ALIGNMENT = 128
Positions = Callable[[Frame, int, Source, Any], "tuple[Index, Index] | None"]
"""Global and shared positions in memory of the bytes of a lane's copy; arguments: frame, position in it, shared address, and
the mask of the lane alone. None if there is nothing to copy."""


def decode(d: Decoder) -> Step:
    """The step of a `cp.async.bulk` instruction."""
    state = d.machine.bulk_stores
    if d.flag("commit_group"):
        d.finish(0)
        return state.commit
    if d.flag("wait_group"):
        only_reads = d.flag("read")
        d.finish(1)
        allowed = int(d.source(0, "u32").constant)
        return lambda frame: state.finish(frame.active_lanes(), allowed, only_reads)
    tensor = d.flag("tensor")
    rank = int(d.need("1d", "2d", "3d", "4d", "5d")[0]) if tensor else 0
    if d.flag("global"):
        return _store(d, state, rank)
    return _load(d, rank, d.take("cta_group::1", "cta_group::2") if tensor else None)


def _load(d: Decoder, rank: int, group: str | None) -> Step:
    """Global to shared memory, or between shared memories of a cluster, counted on an mbarrier."""
    space = state_space(d.need("shared::cluster", "shared::cta"))
    source_space = state_space(d.need("global") if rank or space == "shared" else d.need("global", "shared::cta"))
    if rank:
        d.take("tile")
    d.need("mbarrier::complete_tx::bytes")
    multicast = d.flag("multicast::cluster") if space == "shared::cluster" and source_space == "global" else False
    group = group or (d.take("cta_group::1", "cta_group::2") if rank else None)
    hint = d.flag("L2::cache_hint")
    first = 3 if rank else 4
    d.finish(first + int(multicast) + int(hint))
    to, barrier = d.address_source(d.address(0)), d.address_source(d.address(first - 1))
    mask = d.source(first, "b16") if multicast else None
    positions = (
        _box(d, 1, rank, space, write=False) if rank else _plain(d, 1, (source_space, space), loads=True)
    )  # fmt: skip
    machine, pair = d.machine, group == "cta_group::2"

    def step(frame: Frame) -> None:
        for at, lane_mask in _lanes(frame):
            moved = positions(frame, at, to, lane_mask)
            named = _barrier(frame, barrier, d, lane_mask, space)
            if moved is None or named is None:
                continue
            byte_indices, there = moved
            lane = int(frame.lanes[at])
            if mask is None:
                destinations = single(machine, lane, int(there[0]), named, pair, d.instruction)
            else:
                chosen = int(np.broadcast_to(mask.value(frame), frame.n)[at])
                poison = mask.poison(frame)
                if poison is not None and poison[at]:
                    machine.faults.poison("a mask", d.instruction, frame, np.where(lane_mask, poison, 0).astype(np.uint8))
                destinations = several(machine, lane, int(there[0]), named, chosen, pair, d.instruction)
            for destination in destinations:
                _start_load(d, lane, byte_indices, there, destination, source_space)

    return step


def _start_load(
    d: Decoder, lane: int, byte_indices: Index, given: Index, destination: Destination, source_space: str
) -> None:  # fmt: skip
    """Starts the copy to one destination."""
    machine, there = d.machine, given + destination.shift
    data, poison = _read(byte_indices, lane, d, records=source_space == "global")
    source = byte_indices[byte_indices >= 0]
    reads = granules_of(source) if _tracked(machine, source) else NOTHING
    if len(reads):
        check_proxy(machine, source, lane, d.instruction, source_space)
    start(
        machine, d.instruction, lane, destination, there, data, poison, source=source, reads=reads,
        shared_source=source_space == "shared",
    )  # fmt: skip


def _barrier(frame: Frame, address: Source, d: Decoder, lane_mask: Any, space: str) -> Record | None:
    old, frame.mask = frame.mask, lane_mask
    found = list(d.machine.mbarriers.find(frame, address, d.instruction, space))
    frame.mask = old
    return found[0][0] if found else None


def _store(d: Decoder, state: Stores, rank: int) -> Step:
    """Shared to global, in the thread's bulk group."""
    d.need("shared::cta")
    if rank:
        d.take("tile")
    d.need("bulk_group")
    hint = d.flag("L2::cache_hint")
    d.finish((2 if rank else 3) + int(hint))
    source = d.address_source(d.address(1))
    positions = _box(d, 0, rank, "shared", write=True) if rank else _plain(d, 0, ("global", "shared"), loads=False)
    machine = d.machine

    def step(frame: Frame) -> None:
        for at, lane_mask in _lanes(frame):
            moved = positions(frame, at, source, lane_mask)
            if moved is None:
                continue
            outside, inside = moved
            kept = outside >= 0
            target, where = outside[kept], inside[kept]
            lane = int(frame.lanes[at])
            check_proxy(machine, where, lane, d.instruction, "shared")
            data, poison = _read(where, lane, d)
            check_proxy(machine, target, lane, d.instruction, "global")
            check_write(machine, target, lane, d.instruction)
            operation = machine.ordering.in_flight.begin(granules_of(where), granules_of(target))
            group = int(state.committed[lane])
            state.waiting.append(Transfer(where, target, data, poison, lane, group, d.instruction, operation))

    return step


def _lanes(frame: Frame) -> Iterator[tuple[int, NDArray[np.bool_]]]:
    """Every active lane of a frame, with the mask of that lane alone."""
    for at in frame.active():
        lane_mask = np.zeros(frame.n, np.bool_)
        lane_mask[at] = True
        yield at, lane_mask


def _plain(d: Decoder, operand: int, spaces: tuple[str, str], *, loads: bool) -> Positions:
    """A function that returns the positions of the bytes of a contiguous copy in its two state spaces; the second is shared
    memory, the destination if it `loads`."""
    outer, length = d.address_source(d.address(operand)), d.source(2, "u32")

    def piece(frame: Frame, at: int, shared: Source, lane_mask: Any) -> tuple[Index, Index] | None:
        size = int(np.broadcast_to(length.value(frame), frame.n)[at])
        if size % 16:
            text = f"{size} bytes are no multiple of 16"
            d.machine.faults.add("alignment", text, d.instruction, int(frame.lanes[at]))
            return None
        if not size:
            return None

        def first(source: Source, space: str, *, write: bool) -> Index:
            address, poison = source.value(frame), source.poison(frame)
            return d.machine.locator.locate(
                frame, address, poison, space, size, d.instruction, write=write, align=16, mask=lane_mask
            ).index

        inside, outside = first(shared, spaces[1], write=loads), first(outer, spaces[0], write=not loads)
        if not len(inside) or not len(outside):
            return None
        steps = np.arange(size)
        return outside[0] + steps, inside[0] + steps

    return piece


def _box(d: Decoder, operand: int, rank: int, space: str, *, write: bool) -> Positions:
    """A function that returns the global (-1 outside the tensor) and shared positions of the bytes of a box."""
    location = d.address(operand)
    items = [item for extra in location.extra for item in (extra.items if isinstance(extra, Vector) else (extra,))]
    if len(items) != rank:
        raise d.unsupported(f"{len(items)} coordinates for a tensor of rank {rank}")
    described = d.address_source(location)
    coordinates = [d.source(item, "s32") for item in items]

    def box(frame: Frame, at: int, shared: Source, lane_mask: Any) -> tuple[Index, Index] | None:
        machine, lane = d.machine, int(frame.lanes[at])
        found = machine.locator.locate(
            frame, described.value(frame), described.poison(frame), "generic", MAP_BYTES, d.instruction, write=False,
            align=64, mask=lane_mask,
        )  # fmt: skip
        if not len(found.index):
            return None
        start = int(found.index[0])
        tensor = TensorMap.decode(machine.memory.data[start : start + MAP_BYTES].tobytes())
        if tensor is None or len(tensor.dims) != rank:
            text = "memory that holds no tensor map" if tensor is None else f"a tensor map of rank {len(tensor.dims)}"
            machine.faults.add("descriptor", text, d.instruction, lane, index=start)
            return None
        for source in coordinates:
            poison = poison_of(source, frame)
            if poison is not None and poison[at]:
                machine.faults.poison("a coordinate", d.instruction, frame, np.where(lane_mask, poison, 0).astype(np.uint8))
                return None
        location = machine.locator.locate(
            frame, shared.value(frame), shared.poison(frame), space, tensor.box_bytes, d.instruction, write=False,
            align=BOX_ALIGNMENT, mask=lane_mask,
        )  # fmt: skip
        if not len(location.index):
            return None
        corner = tuple(int(np.broadcast_to(source.value(frame), frame.n)[at]) for source in coordinates)
        offset = int(np.broadcast_to(shared.value(frame), frame.n)[at])
        outside, inside = box_addresses(tensor, corner, offset)
        inside = inside + (int(location.index[0]) - offset)
        steps = np.arange(tensor.element_bytes)
        spread = np.where(outside[:, None] >= 0, outside[:, None] - GLOBAL_BASE + steps, -1).reshape(-1)
        if not _inside_one(spread, lane, d):
            return None
        first = spread[spread >= 0][:1]
        hit = [machine.memory.allocation_at(int(lane_mask)) for lane_mask in first]
        machine.ordering.prior_launches.check(np.full(len(first), lane), first, hit, d.instruction, write=write)
        return spread, (inside[:, None] + steps).reshape(-1)

    return box


def _inside_one(byte_indices: Index, lane: int, d: Decoder) -> bool:
    """Whether the tensor's bytes lie in one allocation of global memory; a fault if not."""
    machine, real = d.machine, byte_indices[byte_indices >= 0]
    if not len(real):
        return True
    low, high = int(real.min()), int(real.max())
    found = machine.memory.allocation_at(low)
    if found is not None and found.space == "global" and found.start <= low and high < found.end:
        return True
    machine.faults.add("bounds", "a tensor map that reaches outside its tensor", d.instruction, lane, index=low)
    return False


def _tracked(machine: Machine, byte_indices: Index) -> bool:
    found = machine.memory.allocation_at(int(byte_indices[0])) if len(byte_indices) else None
    return found is not None and found.tracked


def _read(byte_indices: Index, lane: int, d: Decoder, *, records: bool = True) -> tuple[Bytes, Bytes]:
    """Bytes and poison (zeros for index -1), read now by a lane. Without `records` the caller stamps the reads later."""
    machine, real = d.machine, byte_indices >= 0
    if _tracked(machine, byte_indices[real]):
        watch = machine.accesses.watch_read if records else machine.accesses.check_read
        watch(by_granule(machine.ordering.shadow, byte_indices[real], lane), d.instruction)
    where = np.where(real, byte_indices, 0)
    return np.where(real, machine.memory.data[where], 0).astype(np.uint8), np.where(
        real, machine.memory.poison[where], 0
    ).astype(np.uint8)
