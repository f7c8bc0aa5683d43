"""The destinations of a bulk load: the blocks of a cluster that get its bytes, and the mbarrier that counts them in each.

PTX ISA, `cp.async.bulk` and `cp.async.bulk.tensor`. Without `.multicast::cluster` the mbarrier lies in the block of the
destination or, with `.cta_group::2`, in either block of its pair (ranks that differ in bit 0). With it, every block whose bit
is set in the mask gets the bytes at the same offset, and they count at the mbarrier's offset in that block or, with
`.cta_group::2`, in the block of its pair whose rank has the parity of the given mbarrier's block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tilec.emulator.instructions.mbarrier_state import Record
from tilec.emulator.machine.machine import Machine
from tilec.emulator.ptx.syntax import Instruction


@dataclass(frozen=True, slots=True)
class Destination:
    """A block of the wave, what to add to the index of the given destination, and the mbarrier that counts its bytes."""

    block: int
    shift: int
    record: Record


def owner(machine: Machine, lane: int, index: int) -> int:
    """The block of the lane's cluster whose shared memory contains the index."""
    own = int(machine.wave.block[lane])
    if machine.windows.cluster is None:
        return own
    first = own - int(machine.wave.rank[own])
    starts = [machine.windows.shared[first + rank].start for rank in range(machine.wave.cluster_size)]
    return first + int(np.searchsorted(starts, index, side="right")) - 1


def single(machine: Machine, lane: int, to: int, record: Record, pair: bool, instruction: Instruction) -> Iterator[Destination]:
    """The destination of a copy without multicast; none, and a fault, if its mbarrier is in a wrong block."""
    block = owner(machine, lane, to)
    if record.block == block or (pair and record.block ^ 1 == block and machine.wave.cluster_size % 2 == 0):
        yield Destination(block, 0, record)
        return
    text = "a bulk copy that counts on an mbarrier of another block than that of its destination"
    machine.faults.add("mbarrier", text, instruction, lane, index=record.index)


def several(
    machine: Machine, lane: int, to: int, record: Record, mask: int, pair: bool, instruction: Instruction
) -> Iterator[Destination]:
    """The destinations of a multicast; a fault for each that does not exist, has exited or has no mbarrier."""
    wave, cluster = machine.wave, machine.windows.cluster
    given, first = owner(machine, lane, to), int(wave.block[lane] - wave.rank[wave.block[lane]])
    for rank in (rank for rank in range(16) if mask >> rank & 1):
        block = first + rank
        counting = block - rank % 2 + int(wave.rank[record.block]) % 2 if pair else block
        if rank >= wave.cluster_size or counting - first >= wave.cluster_size:
            text = f"a multicast to a rank that a cluster of {wave.cluster_size} does not have"
            machine.faults.add("cluster", text, instruction, lane, distinct=text)
            continue
        if cluster is not None and (cluster.ended[block] or cluster.ended[counting]):
            text = "a multicast to shared memory of a block that has exited"
            machine.faults.add("cluster", text, instruction, lane, distinct=text)
            continue
        starts = machine.windows.shared
        index = record.index + starts[counting].start - starts[record.block].start
        counter = machine.mbarriers.live.get(index)
        if counter is None:
            text = "a multicast that counts on memory that holds no mbarrier"
            machine.faults.add("mbarrier", text, instruction, lane, index=index, distinct=text)
            continue
        if counter is not record:
            machine.mbarriers.check_made(counter, np.array([lane]), instruction)
        yield Destination(block, starts[block].start - starts[given].start, counter)
