"""The answers to `clusterlaunchcontrol.try_cancel`, and the clusters that got a false one.

In: requests. Out: answers in the emulator's own encoding, three words with the first block and one with MAGIC and CANCELED. A
cluster with a false answer gets false for every later request. A request is undefined, and a fault, if its thread is ordered
after a thread that acquired a false answer to the same cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.machine.access import Access
from tilec.emulator.machine.accesses import Accesses
from tilec.emulator.machine.pending import Pending
from tilec.emulator.machine.subsystem import Subsystem
from tilec.emulator.machine.wave import Wave
from tilec.emulator.ptx.syntax import Instruction

REPLY_BYTES: Final = 16
MAGIC: Final = 0x434C4300
CANCELED: Final = 1
EARLY_REFUSAL: Final = 0.2
"""Probability, under a seed, of a false answer although clusters are left."""


class LaunchControl(Subsystem):
    """`_refused`: the clusters of the wave with a false answer; `_acquired`: by cluster, lane and time of the acquired;
    `_reads`: by the place of an answer, the time of each lane's last read through the generic proxy."""

    def __init__(self, pending: Pending, wave: Wave, accesses: Accesses) -> None:
        self.pending, self.wave, self.faults, self.ordering = pending, wave, accesses.faults, accesses.ordering
        self.clocks = self.ordering.clocks
        self.clear()
        if pending.cancels:
            accesses.on_read.append(self._note_read)

    def clear(self) -> None:
        self._refused: set[int] = set()
        self._acquired: dict[int, list[tuple[int, int]]] = {}
        self._reads: dict[int, dict[int, int]] = {}

    def _note_read(self, access: Access) -> None:
        for address, readers in self._reads.items():
            touched = access.lanes[(access.index < address + REPLY_BYTES) & (access.index + access.width > address)]
            readers.update(dict.fromkeys(touched.tolist(), self.clocks.now))

    def reuse(self, address: int, lane: int, instruction: Instruction) -> None:
        """An answer to a request of `lane` is about to be written to `address`, whose last answer must not be read any more."""
        readers = self._reads.get(address, {})
        who, when = np.array(list(readers), np.int64), np.array(list(readers.values()), np.int64)
        self.ordering.proxies.check_reads(who, when, lane, instruction, address)
        self._reads[address] = {}

    def _cluster(self, lane: int) -> int:
        return int(self.wave.cluster[self.wave.block[lane]])

    def ask(self, lane: int, instruction: Instruction) -> NDArray[np.uint8]:
        """The 16 bytes that answer a request of a lane."""
        cluster, pending = self._cluster(lane), self.pending
        for observer, time in self._acquired.get(cluster, ()):
            who = np.array([observer + self.clocks.first_lane])
            if self.clocks.knows(np.array([lane]), who, np.array([time]))[0]:
                text = "a request after a false answer to the same cluster"
                self.faults.add("cluster", text, instruction, lane, distinct=text)
                break
        seed, left = pending.launch.seed, len(pending.clusters)
        words = np.array([0, 0, 0, MAGIC], np.uint32)
        if not left or cluster in self._refused or (seed and pending.random.random() < EARLY_REFUSAL):
            self._refused.add(cluster)
        else:
            words[:3] = pending.cancel(int(pending.random.integers(left)) if seed else 0)
            words[3] |= CANCELED
        return words.view(np.uint8)

    def observer(self, lane: int, data: NDArray[np.uint8]) -> Callable[[int], None] | None:
        """What to call with the first lane that acquires an answer to a request of `lane`; None if the answer is true."""
        if data.view(np.uint32)[3] & CANCELED:
            return None
        known = self._acquired.setdefault(self._cluster(lane), [])
        return lambda observer: known.append((observer, self.clocks.now))
