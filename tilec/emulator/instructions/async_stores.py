"""`st.async` and `red.async`: stores and reductions in the shared memory of a block of the cluster, counted on its mbarrier.

PTX ISA, "st.async" and "red.async". Both go through the generic proxy and are relaxed: only a thread that acquires the phase of
the mbarrier sees them in order. A store is in flight until then. A reduction is atomic and takes effect when it is issued; it
is stamped as that of a thread that acquired the phase.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tilec.emulator.instructions.atomics import ASYNC_REDUCTION, reduction
from tilec.emulator.instructions.bulk_loads import Loads
from tilec.emulator.instructions.load_starts import start
from tilec.emulator.instructions.mbarrier_state import Record
from tilec.emulator.instructions.memory import ASYNC_STORE
from tilec.emulator.instructions.multicast import Destination, single
from tilec.emulator.machine.access import Access
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.machine import Machine
from tilec.emulator.machine.registry import Decoder
from tilec.emulator.machine.scalar_types import RAW, TYPES
from tilec.emulator.machine.sources import Source, Step
from tilec.emulator.ordering.races import ATOMIC, LANE_BITS

_STORED: Final = ("b32", "b64", "u32", "u64", "s32", "s64", "f32", "f64")
_REDUCED: Final[dict[str, tuple[str, ...]]] = {
    "and": ("b32",), "or": ("b32",), "xor": ("b32",), "add": ("u32", "s32", "u64"), "inc": ("u32",), "dec": ("u32",),
    "min": ("u32", "s32"), "max": ("u32", "s32"),
}  # fmt: skip


def st_async(d: Decoder) -> Step:
    """What follows `st.async`."""
    d.take("weak")
    d.need("shared::cluster")
    d.need("mbarrier::complete_tx::bytes")
    vector = d.take("v2", "v4")
    kind = d.need(*_STORED)
    d.finish(3)
    count, width = int(vector[1]) if vector else 1, TYPES[kind][0] // 8
    values = [d.source(item, f"b{8 * width}") for item in d.vector(1, count)]
    machine = d.machine
    targets = _targets(d, width * count, write=True)

    def step(frame: Frame) -> None:
        rows = np.stack([np.broadcast_to(v.value(frame), frame.n).astype(RAW[8 * width]) for v in values], axis=1)
        flags = np.zeros((frame.n, count), np.uint8)
        for k, value in enumerate(values):
            poison = value.poison(frame)
            if poison is not None:
                flags[:, k] = poison
        for at, lane, index, destination in targets(frame):
            data, poison = rows[at].view(np.uint8), np.repeat(flags[at], width)
            there = index + np.arange(width * count)
            start(machine, d.instruction, lane, destination, there, data, poison, generic=True)

    return step


def red_async(d: Decoder) -> Step:
    """What follows `red.async`."""
    d.need("relaxed")
    d.need("cluster")
    d.need("shared::cluster")
    d.need("mbarrier::complete_tx::bytes")
    operation = d.need(*_REDUCED)
    kind = d.need(*_REDUCED[operation])
    d.finish(3)
    bits, dtype = TYPES[kind]
    value, function, width, machine = d.source(1, f"b{bits}"), reduction(operation, kind), bits // 8, d.machine
    targets = _targets(d, width, write=True)

    def step(frame: Frame) -> None:
        amounts, poison = np.broadcast_to(value.value(frame), frame.n), value.poison(frame)
        for at, lane, index, destination in targets(frame):
            memory = machine.memory
            access = Access(None, np.array([index]), None, width, np.array([lane]))
            time = machine.ordering.clocks.now
            machine.accesses.watch_write(access, d.instruction, atomic=True, scope="cluster")
            machine.ordering.clocks.now += 1
            view, slot = memory.views[width], index // width
            old = view[slot : slot + 1].view(dtype)
            view[slot : slot + 1] = np.asarray(function(old, np.ascontiguousarray(amounts[at : at + 1]).view(dtype))).view(
                RAW[bits]
            )
            if poison is not None and poison[at]:
                memory.poison[index : index + width] |= poison[at]
            _count(machine, d, destination.record, Reduced(machine, access, lane, time, machine.bulk_loads, -1), destination)

    return step


@dataclass(slots=True)
class Reduced:
    """A reduction by `lane` at `time` whose bytes an mbarrier has counted (`mbarrier_state.Landing`)."""

    machine: Machine
    access: Access
    lane: int
    time: int
    loads: Loads
    number: int

    def land(self) -> None:
        """A thread has seen the count, without an order of memory."""
        self.loads.end(self.number)

    def settle(self, observer: int) -> None:
        """The reduction becomes an atomic access by lane `observer`."""
        self.loads.end(self.number)
        ordering = self.machine.ordering
        where = ordering.shadow.granules(self.access.index, self.access.width)
        ordering.shadow.strong.replace(where, self.lane, self.time, observer)
        ordering.shadow.writes[where] = (
            (ordering.clocks.now << LANE_BITS) + observer + ordering.clocks.first_lane + 1
        ) | ATOMIC  # fmt: skip


def _count(machine: Machine, d: Decoder, record: Record, landed: Reduced, destination: Destination) -> None:
    landed.number = machine.bulk_loads.begin(landed.lane, d.instruction, {destination.block, record.block})
    width = landed.access.width

    def arrive() -> int:
        record.completed_copies.append(landed)
        machine.mbarriers.attempt(record, landed.lane, d.instruction, lambda: record.state.complete(width))
        return width

    record.copies_in_flight.append(arrive)


def _targets(d: Decoder, width: int, *, write: bool) -> Callable[[Frame], Iterator[tuple[int, int, int, Destination]]]:
    """For every lane with a valid address and mbarrier: its position in the frame, the lane, the index and the destination."""
    to, barrier, machine = d.address_source(d.address(0)), d.address_source(d.address(2)), d.machine

    def find(frame: Frame) -> Iterator[tuple[int, int, int, Destination]]:
        for at in frame.active():
            one: Any = np.zeros(frame.n, np.bool_)
            one[at] = True
            target = machine.locator.locate(
                frame, to.value(frame), to.poison(frame), "shared::cluster", width, d.instruction, write=write, mask=one
            )
            record = _record(frame, barrier, d, one)
            if len(target.index) and record is not None:
                lane, index = int(frame.lanes[at]), int(target.index[0])
                for destination in single(machine, lane, index, record, False, d.instruction):
                    yield int(at), lane, index, destination

    return find


def _record(frame: Frame, address: Source, d: Decoder, lane_mask: Any) -> Record | None:
    old, frame.mask = frame.mask, lane_mask
    found = [record for record, _ in d.machine.mbarriers.find(frame, address, d.instruction, "shared::cluster")]
    frame.mask = old
    return found[0] if found else None


ASYNC_STORE.append(st_async)
ASYNC_REDUCTION.append(red_async)
