"""`cp.async.bulk` and `cp.async.bulk.tensor`: copies by the bulk engine, through the async proxy.

PTX ISA, "Data movement and conversion instructions: bulk copies" and "tensor copies". A copy to shared memory counts bytes on
an mbarrier; its destination is in flight until a thread has observed the completion of that phase. A copy to global memory
belongs to a bulk group of its thread: its source is in flight until a wait on the group (`.read`), its destination until the
group is complete. Source bytes are read when the copy is issued. im2col, multicast to other blocks and reductions are not
emulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.errors import STORED
from tilec.emulator.instructions import mbarriers
from tilec.emulator.instructions.bulk_loads import loads
from tilec.emulator.instructions.copy_groups import CopyGroups
from tilec.emulator.instructions.operands import active, poison_of
from tilec.emulator.machine import access
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.machine import Machine
from tilec.emulator.machine.memory import GLOBAL_BASE
from tilec.emulator.machine.registry import Decoder, Source, Step
from tilec.emulator.matrices.tensor_maps import MAP_BYTES, TensorMap, box_addresses
from tilec.emulator.ordering import prior_launches
from tilec.emulator.ordering.in_flight import NOTHING, SHIFT, Operation
from tilec.emulator.ordering.proxies import Proxies, proxies
from tilec.emulator.ordering.races import LANE_BITS
from tilec.emulator.ptx.syntax import Vector

Index = NDArray[np.int64]
Bytes = NDArray[np.uint8]
BOX_ALIGNMENT = 128
Positions = Callable[[Frame, int, Source, Any], "tuple[Index, Index] | None"]
"""Global and shared positions in memory of the bytes of a lane's copy; arguments: frame, position in it, shared address, and
the mask of the lane alone. None if there is nothing to copy."""


@dataclass(slots=True)
class _Transfer:
    """The bytes of a copy: positions in memory of source and destination, byte by byte, and the data and poison read."""

    source: Index
    target: Index
    data: Bytes
    poison: Bytes
    lane: int
    group: int
    step: Decoder
    operation: Operation
    reading: bool = True


class Stores(CopyGroups[_Transfer]):
    def finish(self, lanes: Index, allowed: int, only_reads: bool) -> None:
        """Completes all but the last `allowed` groups of these lanes; with `only_reads`, only their source reads."""
        members = set(lanes.tolist())
        left: list[_Transfer] = []
        for transfer in self.waiting:
            if transfer.lane not in members or transfer.group >= self.committed[transfer.lane] - allowed:
                left.append(transfer)
                continue
            if transfer.reading:
                self.machine.pending.end_reads(transfer.operation)
                _stamp_reads(self.machine, transfer.source, transfer.lane)
                transfer.reading = False
            if only_reads:
                left.append(transfer)
                continue
            self.machine.pending.end(transfer.operation)
            _write_transfer(self.machine, transfer, transfer.lane)
            proxies(self.machine).record_async_write(np.unique(transfer.target >> self.machine.shadow.shift))
            if transfer.poison.any():
                flags = np.where(transfer.poison != 0, transfer.poison | STORED, 0).astype(np.uint8)
                self.machine.memory.poison[transfer.target] = flags
                touched = access.Access(None, transfer.target, None, 1, np.full(len(flags), transfer.lane))
                access.note_poison(self.machine, touched, flags[:, None], transfer.step.instruction)
        self.waiting = left

    def leave(self, frame: Frame) -> None:
        """Lanes exit: their stores complete, but one that still reads shared memory is a fault."""
        if not self.waiting:
            return
        members = set(frame.lanes.tolist())
        for transfer in self.waiting:
            if transfer.lane in members and transfer.reading:
                self.machine.faults.add(
                    "async",
                    "a thread ends while its bulk store still reads shared memory",
                    transfer.step.instruction,
                    transfer.lane,
                )
        self.committed[frame.lanes] += 1
        self.finish(frame.lanes, 0, False)


def stores(machine: Machine) -> Stores:
    """The launch's bulk stores."""
    found = machine.extensions.get("bulk stores")
    if found is None:
        found = machine.extensions["bulk stores"] = Stores(machine)
    return found


def decode(d: Decoder) -> Step:
    """The step of a `cp.async.bulk` instruction."""
    state = stores(d.machine)
    if d.flag("commit_group"):
        return state.commit(d)
    if d.flag("wait_group"):
        only_reads = d.flag("read")
        d.finish(1)
        allowed = int(d.source(0, "u32").constant)
        return lambda frame: state.finish(active(frame), allowed, only_reads)
    tensor = d.flag("tensor")
    rank = int(d.need("1d", "2d", "3d", "4d", "5d")[0]) if tensor else 0
    if d.flag("global"):
        return _store(d, state, rank)
    return _load(d, rank)


def _granules(bytes_: Index) -> Index:
    return np.unique(bytes_ >> SHIFT)


def _load(d: Decoder, rank: int) -> Step:
    """Global to shared, counted on an mbarrier."""
    d.need("shared::cluster", "shared::cta")
    d.need("global")
    if rank:
        d.take("tile")
    d.need("mbarrier::complete_tx::bytes")
    hint = d.flag("L2::cache_hint")
    d.finish((3 if rank else 4) + int(hint))
    barriers = mbarriers.mbarriers(d.machine)
    to, barrier = d.address_source(d.address(0)), d.address_source(d.address(2 if rank else 3))
    positions = _box(d, 1, rank, write=False) if rank else _plain(d, 1, loads=True)
    machine = d.machine
    log = proxies(machine)

    def step(frame: Frame) -> None:
        for at, lane_mask in _lanes(frame):
            moved = positions(frame, at, to, lane_mask)
            named = _barrier(frame, barrier, d, barriers, lane_mask)
            if moved is None or named is None:
                continue
            byte_indices, there = moved
            lane = int(frame.lanes[at])
            made = machine.shadow.granules(np.array([named.index]), mbarriers.BYTES)[0]
            log.check(made, lane, d.instruction, named.index, barrier=True)
            data, poison = _read(machine, byte_indices, lane, d)
            source = byte_indices[byte_indices >= 0]
            _watch_proxy(log, there, lane, d, "shared")  # before its stamps are those of this write
            _watch_write(machine, there, lane, d)
            reads = _granules(source) if _tracked(machine, source) else NOTHING
            if len(reads):
                _watch_proxy(log, source, lane, d, "global")
            operation = machine.pending.begin(reads, _granules(there))
            _start_load(machine, barriers, named, _Transfer(source, there, data, poison, lane, 0, d, operation), log)

    return step


def _start_load(
    machine: Machine, barriers: mbarriers.Mbarriers, record: mbarriers.Record, transfer: _Transfer, log: Any
) -> None:
    number = loads(machine).begin(transfer.lane, transfer.step.instruction)

    def settle(observer: int) -> None:
        loads(machine).end(number)
        machine.pending.end(transfer.operation)
        _write_transfer(machine, transfer, observer)
        log.record_async_write(np.unique(transfer.target >> machine.shadow.shift))

    def arrive() -> int:
        record.completed_copies.append(settle)
        barriers.attempt(record, transfer.lane, transfer.step, lambda: record.state.complete(len(transfer.target)))
        return len(transfer.target)

    record.copies_in_flight.append(arrive)


def _barrier(
    frame: Frame, address: Source, d: Decoder, barriers: mbarriers.Mbarriers, lane_mask: Any
) -> mbarriers.Record | None:
    old, frame.mask = frame.mask, lane_mask
    found = list(barriers.find(frame, address, d))
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
    positions = _box(d, 0, rank, write=True) if rank else _plain(d, 0, loads=False)
    machine = d.machine
    log = proxies(machine)

    def step(frame: Frame) -> None:
        for at, lane_mask in _lanes(frame):
            moved = positions(frame, at, source, lane_mask)
            if moved is None:
                continue
            outside, inside = moved
            kept = outside >= 0
            target, where = outside[kept], inside[kept]
            lane = int(frame.lanes[at])
            _watch_proxy(log, where, lane, d, "shared")
            data, poison = _read(machine, where, lane, d)
            _watch_proxy(log, target, lane, d, "global")
            _watch_write(machine, target, lane, d)
            operation = machine.pending.begin(_granules(where), _granules(target))
            state.waiting.append(_Transfer(where, target, data, poison, lane, int(state.committed[lane]), d, operation))

    return step


def _lanes(frame: Frame) -> Iterator[tuple[int, NDArray[np.bool_]]]:
    """Every active lane of a frame, with the mask of that lane alone."""
    for at in frame.active():
        lane_mask = np.zeros(frame.n, np.bool_)
        lane_mask[at] = True
        yield at, lane_mask


def _plain(d: Decoder, operand: int, *, loads: bool) -> Positions:
    """A function that returns the global and shared positions of the bytes of a contiguous copy."""
    outer, length = d.address_source(d.address(operand)), d.source(2, "u32")

    def piece(frame: Frame, at: int, shared: Source, lane_mask: Any) -> tuple[Index, Index] | None:
        size = int(np.broadcast_to(length.value(frame), frame.n)[at])
        if size % 16:
            text = f"{size} bytes are no multiple of 16"
            frame.machine.faults.add("alignment", text, d.instruction, int(frame.lanes[at]))
            return None
        if not size:
            return None

        def first(source: Source, space: str, *, write: bool) -> Index:
            address, poison = source.value(frame), source.poison(frame)
            return access.locate(
                frame, address, poison, space, size, d.instruction, write=write, align=16, mask=lane_mask
            ).index

        inside, outside = first(shared, "shared", write=loads), first(outer, "global", write=not loads)
        if not len(inside) or not len(outside):
            return None
        steps = np.arange(size)
        return outside[0] + steps, inside[0] + steps

    return piece


def _box(d: Decoder, operand: int, rank: int, *, write: bool) -> Positions:
    """A function that returns the global (-1 outside the tensor) and shared positions of the bytes of a box."""
    place = d.address(operand)
    items = [item for extra in place.extra for item in (extra.items if isinstance(extra, Vector) else (extra,))]
    if len(items) != rank:
        raise d.unsupported(f"{len(items)} coordinates for a tensor of rank {rank}")
    described = d.address_source(place)
    coordinates = [d.source(item, "s32") for item in items]

    def box(frame: Frame, at: int, shared: Source, lane_mask: Any) -> tuple[Index, Index] | None:
        machine, lane = frame.machine, int(frame.lanes[at])
        found = access.locate(
            frame,
            described.value(frame),
            described.poison(frame),
            "generic",
            MAP_BYTES,
            d.instruction,
            write=False,
            align=64,
            mask=lane_mask,
        )
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
        place = access.locate(
            frame, shared.value(frame), shared.poison(frame), "shared", tensor.box_bytes, d.instruction, write=False,
            align=BOX_ALIGNMENT, mask=lane_mask,
        )  # fmt: skip
        if not len(place.index):
            return None
        corner = tuple(int(np.broadcast_to(source.value(frame), frame.n)[at]) for source in coordinates)
        offset = int(np.broadcast_to(shared.value(frame), frame.n)[at])
        outside, inside = box_addresses(tensor, corner, offset)
        inside = inside + (int(place.index[0]) - offset)
        steps = np.arange(tensor.element_bytes)
        spread = np.where(outside[:, None] >= 0, outside[:, None] - GLOBAL_BASE + steps, -1).reshape(-1)
        if not _inside_one(machine, spread, d, lane):
            return None
        first = spread[spread >= 0][:1]
        hit = [machine.memory.allocation_at(int(lane_mask)) for lane_mask in first]
        prior_launches.check(machine, np.full(len(first), lane), first, hit, d.instruction, write=write)
        return spread, (inside[:, None] + steps).reshape(-1)

    return box


def _inside_one(machine: Machine, byte_indices: Index, d: Decoder, lane: int) -> bool:
    """Whether the tensor's bytes lie in one allocation of global memory; a fault if not."""
    real = byte_indices[byte_indices >= 0]
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


def _rows(machine: Machine, byte_indices: Index) -> Index:
    """First bytes of the race granules that contain these bytes."""
    return np.unique(byte_indices >> machine.shadow.shift) << machine.shadow.shift


def _read(machine: Machine, byte_indices: Index, lane: int, d: Decoder) -> tuple[Bytes, Bytes]:
    """Bytes and poison (zeros for index -1), read now by a lane."""
    real = byte_indices >= 0
    if _tracked(machine, byte_indices[real]):
        rows = _rows(machine, byte_indices[real])
        width = 1 << machine.shadow.shift
        access.watch_read(machine, access.Access(None, rows, None, width, np.full(len(rows), lane)), d.instruction)
    where = np.where(real, byte_indices, 0)
    return np.where(real, machine.memory.data[where], 0).astype(np.uint8), np.where(
        real, machine.memory.poison[where], 0
    ).astype(np.uint8)


def _watch_proxy(log: Proxies, byte_indices: Index, lane: int, d: Decoder, space: str) -> None:
    """Checks that the last generic writes of these bytes are visible to the async proxy, which reads or writes them."""
    if len(byte_indices):
        log.check(np.unique(byte_indices >> log.machine.shadow.shift), lane, d.instruction, int(byte_indices[0]), space=space)


def _watch_write(machine: Machine, byte_indices: Index, lane: int, d: Decoder) -> None:
    found = machine.memory.allocation_at(int(byte_indices[0])) if len(byte_indices) else None
    if found is None:
        return
    if not found.writable:
        machine.faults.add("read-only", f"a write to `{found.name}`", d.instruction, lane, index=int(byte_indices[0]))
    rows = _rows(machine, byte_indices)
    width = 1 << machine.shadow.shift
    access.watch_write(machine, access.Access(None, rows, None, width, np.full(len(rows), lane)), d.instruction)


def _stamp_reads(machine: Machine, byte_indices: Index, lane: int) -> None:
    """Stamps the reads of the source as of now."""
    rows = _rows(machine, byte_indices)
    machine.shadow.read(rows, 1 << machine.shadow.shift, np.full(len(rows), lane))


def _write_transfer(machine: Machine, transfer: _Transfer, lane: int) -> None:
    """Writes the bytes, stamped as a write by `lane`."""
    memory, clocks, shadow = machine.memory, machine.clocks, machine.shadow
    memory.data[transfer.target] = transfer.data
    memory.poison[transfer.target] = transfer.poison
    where = np.unique(transfer.target >> shadow.shift)
    shadow.writes[where] = (clocks.now << LANE_BITS) + lane + clocks.first_lane + 1
    shadow.reads[where] = 0
