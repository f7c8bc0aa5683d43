"""The barriers of the blocks of a wave: `bar`, `barrier`.

A barrier completes when the expected number of threads has arrived: the whole block, or the given count of any threads. It is
then reinitialised for the next arrivals (PTX ISA, bar: the barrier can be reused at once). If the threads of one step exceed
the count, their warps arrive one after another, in the order of their numbers or, under a seed, in random order. Exited
threads do not arrive: a whole-block barrier that completes only because they are discounted is a fault.

A thread that did not wait in the last phase of a barrier must know that this phase is complete before it arrives: it must be
ordered after a thread that waited. Otherwise its arrival may count for that phase, although no schedule needs to show it, and
the fault is the same in every schedule. So two groups of warps share a barrier only if something orders them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.instructions.barrier_votes import Ballot, announce
from tilec.emulator.machine.faults import Recorder
from tilec.emulator.machine.launch_state import LaunchState
from tilec.emulator.machine.registers import Registers
from tilec.emulator.machine.subsystem import Subsystem
from tilec.emulator.machine.wave import EXITED, Wave
from tilec.emulator.ordering.clocks import Clocks
from tilec.emulator.ptx.syntax import Instruction

Index = NDArray[np.int64]


class Barriers(Subsystem):
    """The 16 barriers of each block: the lanes that wait, those that only arrived, the token that these released on arrival,
    and the time of the last phase with the lanes that waited in it. Accesses of a thread after its `bar.arrive` are not
    ordered by the barrier."""

    def __init__(
        self,
        launch: LaunchState,
        wave: Wave,
        registers: Registers,
        random: np.random.Generator,
        clocks: Clocks,
        faults: Recorder,
    ) -> None:
        self.launch, self.wave, self.registers, self.random = launch, wave, registers, random
        self.clocks, self.faults = clocks, faults
        self.clear()

    def clear(self) -> None:
        self.waiting: dict[tuple[int, int], list[Index]] = {}
        self.arrived: dict[tuple[int, int], list[Index]] = {}
        self.released: dict[tuple[int, int], Index] = {}
        self.expected: dict[tuple[int, int], int] = {}
        self.last: dict[tuple[int, int], tuple[int, Index]] = {}
        self.ballots: dict[tuple[int, int], list[Ballot]] = {}

    def arrive_in_step(
        self,
        instruction: Instruction,
        key: tuple[int, int],
        expected: int,
        lanes: Index,
        waits: bool,
        ballot: Ballot | None = None,
    ) -> list[tuple[int, int]]:
        """Adds the lanes that arrive in one step, with their votes at a `bar.red`: together, or warp by warp if they exceed the
        expected count. Returns the barrier if it is complete now; earlier completions in this step have been released
        already."""
        turns, done, wave = [lanes], False, self.wave
        if self._threads_at(key) + len(lanes) > expected:
            warps = np.unique(wave.warp[lanes])
            turns = [lanes[wave.warp[lanes] == w] for w in (self.random.permutation(warps) if self.launch.seed else warps)]
        for turn in turns:
            if done:
                self.wave.wake(self.release([key]))
            self._vote(instruction, key, turn, ballot)
            done = self.arrive(instruction, *key, expected, turn, waits)
        return [key] if done else []

    def _vote(self, instruction: Instruction, key: tuple[int, int], lanes: Index, ballot: Ballot | None) -> None:
        """Adds the votes of a `bar.red`, which may not meet other forms in one phase (PTX ISA, bar: "unpredictable")."""
        if (key in self.waiting or key in self.arrived) and (key in self.ballots) != (ballot is not None):
            text = f"bar.red and another form meet at barrier {key[1]}"
            self.faults.add("barrier", text, instruction, int(lanes[0]), distinct="red")
        if ballot is not None:
            self.ballots.setdefault(key, []).append(ballot.part(lanes))

    def arrive(self, instruction: Instruction, block: int, number: int, expected: int, lanes: Index, waits: bool) -> bool:
        """Adds lanes; returns whether they complete the barrier. Waiting lanes must be BLOCKED already."""
        key = (block, number)
        if self.expected.setdefault(key, expected) != expected:
            message = f"barrier {number} with {expected} threads where others named {self.expected[key]}"
            self.faults.add("barrier", message, instruction, int(lanes[0]))
        self._check_phase(instruction, key, lanes)
        (self.waiting if waits else self.arrived).setdefault(key, []).append(lanes)
        if not waits:
            token, before = self.clocks.release(lanes), self.released.get(key)
            self.released[key] = token if before is None else np.maximum(before, token)
        total = self._threads_at(key)
        if total > expected:
            self.faults.add("barrier", f"{total} threads at barrier {number} of {expected}", instruction, int(lanes[0]))
        return total >= expected

    def _threads_at(self, key: tuple[int, int]) -> int:
        return sum(len(lanes) for table in (self.waiting, self.arrived) for lanes in table.get(key, ()))

    def _check_phase(self, instruction: Instruction, key: tuple[int, int], lanes: Index) -> None:
        """Lanes that arrive must know that the last phase is complete. Every lane that waited in it knows the others at its
        time, so one of them stands for all."""
        if key not in self.last:
            return
        time, waited = self.last[key]
        clocks, new = self.clocks, lanes[~np.isin(lanes, waited)]
        others = np.full(len(new), waited[0] + clocks.first_lane)
        unaware = new[~clocks.knows(new, others, np.full(len(new), time))]
        if len(unaware):
            text = f"barrier {key[1]} is used by threads that may arrive before its last phase, of other threads, is complete"
            self.faults.add("barrier", text, instruction, int(unaware[0]), count=len(unaware), distinct="phase")

    def release(self, keys: list[tuple[int, int]]) -> Index:
        """Completes barriers and orders memory; returns the lanes that waited."""
        whole: list[int] = []
        woken: list[Index] = []
        for key in keys:
            waiting = np.concatenate(self.waiting.pop(key, [np.zeros(0, np.int64)]))
            self.arrived.pop(key, None)
            self.expected.pop(key, None)
            released = self.released.pop(key, None)
            if key in self.ballots:
                announce(self.wave, self.registers, self.ballots.pop(key))
            self.last.pop(key, None)
            if len(waiting):
                self.last[key] = self.clocks.now, waiting
            if len(waiting) == self.launch.threads:
                whole.append(key[0])
            elif len(waiting):
                token = self.clocks.release(waiting)
                self.clocks.acquire(waiting, token if released is None else np.maximum(token, released))
            woken.append(waiting)
        if whole:
            self.clocks.block_barrier(np.array(whole, np.int64))
        return np.concatenate(woken)

    def advance(self) -> bool:
        """Completes whole-block barriers that wait for exited threads."""
        wave, threads, woke = self.wave, self.launch.threads, False
        for key in list(self.waiting):
            lanes = wave.lanes_of_block(key[0])
            gone = int((wave.status[lanes] == EXITED).sum())
            if gone and self.expected[key] == threads and self._threads_at(key) + gone == threads:
                first = int(self.waiting[key][0][0])
                instruction = self.launch.function.instructions[int(wave.pc[first])]
                self.faults.add("barrier", f"{gone} threads left the block before barrier {key[1]}", instruction, first)
                wave.wake(self.release([key]))
                woke = True
        return woke
