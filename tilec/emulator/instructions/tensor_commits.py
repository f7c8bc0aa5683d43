"""`tcgen05.commit`: an mbarrier gets an arrival once the operations that the thread issued before are complete.

PTX ISA, "tcgen05.commit". With `.multicast::cluster` the barriers at the same offset of all blocks in the mask get one each.
The arrival touches the mbarrier through the generic proxy.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilec.emulator.instructions.mbarrier_state import Record
from tilec.emulator.instructions.memory import state_space
from tilec.emulator.instructions.tensor_operands import blocks_of, group, of_thread
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.registry import Decoder
from tilec.emulator.machine.sources import Step


def commit(d: Decoder) -> Step:
    """`tcgen05.commit.cta_group::G.mbarrier::arrive::one{.shared::cluster}{.multicast::cluster}.b64 [barrier]{, mask}`."""
    pair = group(d)
    d.need("mbarrier::arrive::one")
    space = state_space(d.take("shared::cluster"))
    several = d.flag("multicast::cluster")
    d.need("b64")
    d.finish(1 + several)
    address = d.address_source(d.address(0))
    mask = d.source(1, "b16") if several else None
    machine = d.machine

    def step(frame: Frame) -> None:
        for at in frame.active().tolist():
            lane = int(frame.lanes[at])
            blocks = blocks_of(machine, lane, pair, d)
            given, frame.mask = frame.mask, np.arange(frame.n) == at
            named = [record for record, _ in machine.mbarriers.find(frame, address, d.instruction, space)]
            frame.mask = given
            if blocks is None or not named:
                continue
            if mask is None:
                machine.tensor_queue.commit(lane, named, d.instruction)
                continue
            bits = of_thread(mask, frame, at, "a mask", d)
            if bits is not None:
                machine.tensor_queue.commit(lane, list(_peers(d, lane, named[0], bits)), d.instruction)

    return step


def _peers(d: Decoder, lane: int, named: Record, mask: int) -> Iterator[Record]:
    """The barriers at the same offset in the blocks of the mask; a fault for each that does not exist."""
    machine, wave = d.machine, d.machine.wave
    first = int(wave.block[lane] - wave.rank[wave.block[lane]])
    for rank in (rank for rank in range(16) if mask >> rank & 1):
        if rank >= wave.cluster_size:
            text = f"a commit to a rank that a cluster of {wave.cluster_size} does not have"
            machine.faults.add("cluster", text, d.instruction, lane, distinct=text)
            continue
        windows = machine.windows.shared
        index = named.index + windows[first + rank].start - windows[named.block].start
        record = machine.mbarriers.live.get(index)
        if record is None:
            text = "a commit to memory that holds no mbarrier"
            machine.faults.add("mbarrier", text, d.instruction, lane, index=index, distinct=text)
            continue
        if record is not named:
            machine.mbarriers.check_made(record, np.array([lane]), d.instruction)
        yield record
