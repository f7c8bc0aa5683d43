"""The start of an asynchronous write into shared memory that an mbarrier counts, and the checks that it makes.

In: a lane, a destination (`multicast`), positions in memory and the bytes. Out: the load is under way; it lands when a thread
tests the mbarrier, or when no thread can run, and is visible to threads that acquire that phase.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilec.emulator.instructions.bulk_loads import Landed
from tilec.emulator.instructions.bulk_transfers import Bytes, Index, Transfer, by_granule
from tilec.emulator.instructions.mbarrier_state import BYTES
from tilec.emulator.instructions.multicast import Destination
from tilec.emulator.machine.machine import Machine
from tilec.emulator.ordering.in_flight import NOTHING, SHIFT
from tilec.emulator.ptx.syntax import Instruction


def granules_of(bytes_: Index) -> Index:
    """The in-flight granules of these bytes."""
    return np.unique(bytes_ >> SHIFT)


def check_proxy(machine: Machine, byte_indices: Index, lane: int, instruction: Instruction, space: str) -> None:
    """Checks that the last generic writes of these bytes are visible to the async proxy, which reads or writes them."""
    ordering = machine.ordering
    if len(byte_indices):
        granules = np.unique(byte_indices >> ordering.shadow.shift)
        ordering.proxies.check(granules, lane, instruction, int(byte_indices[0]), space=space)


def check_write(
    machine: Machine, byte_indices: Index, lane: int, instruction: Instruction, *, through_async: bool = True
) -> None:
    """Checks a write of these bytes by a lane, and records it."""
    found = machine.memory.allocation_at(int(byte_indices[0])) if len(byte_indices) else None
    if found is None:
        return
    if not found.writable:
        machine.faults.add("read-only", f"a write to `{found.name}`", instruction, lane, index=int(byte_indices[0]))
    machine.accesses.watch_write(
        by_granule(machine.ordering.shadow, byte_indices, lane), instruction, through_async=through_async
    )


def start(
    machine: Machine,
    instruction: Instruction,
    lane: int,
    destination: Destination,
    there: Index,
    data: Bytes,
    poison: Bytes,
    *,
    source: Index = NOTHING,
    reads: Index = NOTHING,
    shared_source: bool = False,
    generic: bool = False,
    then: Callable[[int], None] | None = None,
) -> None:
    """Starts the write of `data` to the bytes `there`. `source`: the bytes it was read from, of which `reads` are granules that
    may not change before it lands; `generic`: it writes through the generic proxy; `then` is called with
    the first lane that acquires its completion."""
    record = destination.record
    if not generic:
        made = machine.ordering.shadow.granules(np.array([record.index]), BYTES)[0]
        machine.ordering.proxies.check(made, lane, instruction, record.index, barrier=True)
        check_proxy(machine, there, lane, instruction, "shared")  # before its stamps are those of this write
    check_write(machine, there, lane, instruction, through_async=not generic)
    if not generic:
        machine.ordering.proxies.record_async_write(np.unique(there >> machine.ordering.shadow.shift))
    operation = machine.ordering.in_flight.begin(reads, granules_of(there))
    transfer = Transfer(source, there, data, poison, lane, 0, instruction, operation)
    blocks = {destination.block, record.block, *((int(machine.wave.block[lane]),) if shared_source else ())}
    number = machine.bulk_loads.begin(lane, instruction, blocks)
    landed = Landed(machine.bulk_loads, machine.accesses, number, transfer, shared_source, generic, then)

    def arrive() -> int:
        record.completed_copies.append(landed)
        count = len(there)
        machine.mbarriers.attempt(record, lane, instruction, lambda: record.state.complete(count))
        return count

    record.copies_in_flight.append(arrive)
