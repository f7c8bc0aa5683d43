"""bar and barrier: sync, arrive and red, with ids and counts; bar.warp.sync (PTX ISA, section 9.7.13.1 and 9.7.13.2).

A barrier completes when the expected number of threads has arrived: the whole block, or the given count of any threads. It is
then reinitialised for the next arrivals (PTX ISA, bar: the barrier can be reused at once). If the threads of one step exceed
the count, their warps arrive one after another, in the order of their numbers or, under a seed, in random order. Exited
threads do not arrive: a whole-block barrier that completes only because they are discounted is a fault.

A thread that did not wait in the last phase of a barrier must know that this phase is complete before it arrives: it must be
ordered after a thread that waited. Otherwise its arrival may count for that phase, although no schedule needs to show it, and
the fault is the same in every schedule. So two groups of warps share a barrier only if something orders them.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.instructions.barrier_votes import Ballot, announce
from tilec.emulator.instructions.convergence import converge
from tilec.emulator.instructions.operands import read
from tilec.emulator.instructions.warp import warp_barrier
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.registry import RESCHEDULE, Decoder, Source, Step, control
from tilec.emulator.ptx.syntax import Immediate

BLOCKED: Final = 1
EXITED: Final = 2
IDS: Final = 16
Index = NDArray[np.int64]


class Barriers:
    """The 16 barriers of each block: the lanes that wait, those that only arrived, the token that these released on arrival,
    and the time of the last phase with the lanes that waited in it. Accesses of a thread after its `bar.arrive` are not
    ordered by the barrier."""

    def __init__(self, machine: Any) -> None:
        self.machine = machine
        machine.on_wave.append(self._start)
        machine.wakers.append(self._complete_for_exited)
        self._start()

    @staticmethod
    def of(machine: Any) -> Barriers:
        if "barriers" not in machine.extensions:
            machine.extensions["barriers"] = Barriers(machine)
        return machine.extensions["barriers"]

    def _start(self) -> None:
        self.waiting: dict[tuple[int, int], list[Index]] = {}
        self.arrived: dict[tuple[int, int], list[Index]] = {}
        self.released: dict[tuple[int, int], Index] = {}
        self.expected: dict[tuple[int, int], int] = {}
        self.last: dict[tuple[int, int], tuple[int, Index]] = {}
        self.ballots: dict[tuple[int, int], list[Ballot]] = {}

    def arrive_in_step(
        self, d: Decoder, key: tuple[int, int], expected: int, lanes: Index, waits: bool, ballot: Ballot | None = None
    ) -> list[tuple[int, int]]:
        """Adds the lanes that arrive in one step, with their votes at a `bar.red`: together, or warp by warp if they exceed the
        expected count. Returns the barrier if it is complete now; earlier completions in this step have been released
        already."""
        turns, done, machine = [lanes], False, self.machine
        if sum(len(x) for table in (self.waiting, self.arrived) for x in table.get(key, ())) + len(lanes) > expected:
            warps = np.unique(machine.warp[lanes])
            turns = [lanes[machine.warp[lanes] == w] for w in (machine.random.permutation(warps) if machine.seed else warps)]
        for turn in turns:
            if done:
                machine.wake(self.release([key]))
            self._vote(d, key, turn, ballot)
            done = self.arrive(d, *key, expected, turn, waits)
        return [key] if done else []

    def _vote(self, d: Decoder, key: tuple[int, int], lanes: Index, ballot: Ballot | None) -> None:
        """Adds the votes of a `bar.red`, which may not meet other forms in one phase (PTX ISA, bar: "unpredictable")."""
        if (key in self.waiting or key in self.arrived) and (key in self.ballots) != (ballot is not None):
            text = f"bar.red and another form meet at barrier {key[1]}"
            self.machine.faults.add("barrier", text, d.instruction, int(lanes[0]), distinct="red")
        if ballot is not None:
            self.ballots.setdefault(key, []).append(ballot.part(lanes))

    def arrive(self, d: Decoder, block: int, number: int, expected: int, lanes: Index, waits: bool) -> bool:
        """Adds lanes; returns whether they complete the barrier. Waiting lanes must be BLOCKED already."""
        key, machine = (block, number), self.machine
        if self.expected.setdefault(key, expected) != expected:
            message = f"barrier {number} with {expected} threads where others named {self.expected[key]}"
            machine.faults.add("barrier", message, d.instruction, int(lanes[0]))
        self._check_phase(d, key, lanes)
        (self.waiting if waits else self.arrived).setdefault(key, []).append(lanes)
        if not waits:
            token, before = machine.clocks.release(lanes), self.released.get(key)
            self.released[key] = token if before is None else np.maximum(before, token)
        total = sum(len(x) for table in (self.waiting, self.arrived) for x in table.get(key, ()))
        if total > expected:
            machine.faults.add("barrier", f"{total} threads at barrier {number} of {expected}", d.instruction, int(lanes[0]))
        return total >= expected

    def _check_phase(self, d: Decoder, key: tuple[int, int], lanes: Index) -> None:
        """Lanes that arrive must know that the last phase is complete. Every lane that waited in it knows the others at its
        time, so one of them stands for all."""
        if key not in self.last:
            return
        time, waited = self.last[key]
        clocks, new = self.machine.clocks, lanes[~np.isin(lanes, waited)]
        others = np.full(len(new), waited[0] + clocks.first_lane)
        unaware = new[~clocks.knows(new, others, np.full(len(new), time))]
        if len(unaware):
            text = f"barrier {key[1]} is used by threads that may arrive before its last phase, of other threads, is complete"
            self.machine.faults.add("barrier", text, d.instruction, int(unaware[0]), count=len(unaware), distinct="phase")

    def release(self, keys: list[tuple[int, int]]) -> Index:
        """Completes barriers and orders memory; returns the lanes that waited."""
        machine = self.machine
        whole: list[int] = []
        woken: list[Index] = []
        for key in keys:
            waiting = np.concatenate(self.waiting.pop(key, [np.zeros(0, np.int64)]))
            self.arrived.pop(key, None)
            self.expected.pop(key, None)
            released = self.released.pop(key, None)
            if key in self.ballots:
                announce(machine, self.ballots.pop(key))
            self.last.pop(key, None)
            if len(waiting):
                self.last[key] = machine.clocks.now, waiting
            if len(waiting) == machine.threads:
                whole.append(key[0])
            elif len(waiting):
                token = machine.clocks.release(waiting)
                machine.clocks.acquire(waiting, token if released is None else np.maximum(token, released))
            woken.append(waiting)
        if whole:
            machine.clocks.block_barrier(np.array(whole, np.int64))
        return np.concatenate(woken)

    def _complete_for_exited(self) -> bool:
        """Completes whole-block barriers that wait for exited threads."""
        machine, woke = self.machine, False
        for key in list(self.waiting):
            lanes = machine.lanes_of_block(key[0])
            gone = int((machine.status[lanes] == EXITED).sum())
            here = sum(len(x) for table in (self.waiting, self.arrived) for x in table.get(key, ()))
            if gone and self.expected[key] == machine.threads and here + gone == machine.threads:
                first = int(self.waiting[key][0][0])
                instruction = machine.program.instructions[int(machine.pc[first])]
                machine.faults.add("barrier", f"{gone} threads left the block before barrier {key[1]}", instruction, first)
                machine.wake(self.release([key]))
                woke = True
        return woke


@control("bar", "barrier")
def bar(d: Decoder) -> Step:
    if d.instruction.opcode == "bar" and d.flag("warp"):
        d.need("sync")
        return warp_barrier(d)
    d.flag("cta")
    mode = d.need("sync", "arrive", "red")
    operation = d.need("popc", "and", "or") if mode == "red" else ""
    aligned = d.flag("aligned") or d.instruction.opcode == "bar"
    if operation:
        d.need("u32" if operation == "popc" else "pred")
    first = 1 if operation else 0
    d.finish(*((3, 4) if operation else (2,) if mode == "arrive" else (1, 2)))
    operands = d.operands[first : -1 if operation else None]
    number = d.source(first, "u32")
    count = d.source(operands[1], "u32") if len(operands) > 1 else None
    if count is not None and count.constant is not None and (int(count.constant) % 32 or not int(count.constant)):
        raise d.unsupported("a thread count that is no multiple of 32")
    if operation:
        step = _reduce(d, operation, number, count)
        return converge(d, step) if aligned else step
    simple = isinstance(d.operands[first], Immediate) and count is None
    step = _step(d, number, count, mode == "sync", simple)
    return converge(d, step) if aligned else step


def _step(d: Decoder, number: Source, count: Source | None, waits: bool, simple: bool) -> Step:
    machine, barriers = d.machine, Barriers.of(d.machine)

    def step(frame: Frame) -> Any:
        if simple and waits and not barriers.waiting and not barriers.arrived and frame.n % machine.threads == 0:
            blocks, counts = np.unique(frame.column("block"), return_counts=True)
            if (counts == machine.threads).all():
                machine.clocks.block_barrier(blocks)
                return None
        return _arrive(d, frame, number, count, waits, barriers)

    return step


def _arrive(
    d: Decoder, frame: Frame, number: Source, count: Source | None, waits: bool, barriers: Barriers,
    ballot: Ballot | None = None,
) -> Any:  # fmt: skip
    machine = d.machine
    ids = np.broadcast_to(number.value(frame), frame.n).astype(np.int64)
    counts = None if count is None else np.broadcast_to(count.value(frame), frame.n).astype(np.int64)
    for source in (number, count):
        poison = None if source is None else source.poison(frame)
        if poison is not None:
            machine.faults.poison("the operand of a barrier", d.instruction, frame, poison)
    machine.faults.lanes("barrier", "a barrier past number 15", d.instruction, frame, ids >= IDS)
    blocks = frame.column("block")
    machine.park(frame, d.index if waits else d.index + 1, BLOCKED if waits else 0)
    done: list[tuple[int, int]] = []
    for block in np.unique(blocks):
        for each in np.unique(ids[blocks == block]):
            here = (blocks == block) & (ids == each)
            key = int(block), int(each)
            for wanted in [machine.threads] if counts is None else np.unique(counts[here]).tolist():
                if done and done[-1] == key:
                    machine.wake(barriers.release([done.pop()]))
                lanes = frame.lanes[here if counts is None else here & (counts == wanted)]
                done += barriers.arrive_in_step(d, key, wanted, lanes, waits, ballot)
    if done:
        machine.wake(barriers.release(done))
    return RESCHEDULE


def _reduce(d: Decoder, operation: str, number: Source, count: Source | None) -> Step:
    """bar.red: a barrier that also reduces a predicate over its threads."""
    kind = "u32" if operation == "popc" else "pred"
    source, write = d.source(len(d.operands) - 1, "pred"), d.target(0, kind)
    barriers = Barriers.of(d.machine)

    def step(frame: Frame) -> Any:
        votes, poison = read(source, frame)
        ballot = Ballot(frame.lanes, votes, poison, operation, write, d.index)
        return _arrive(d, frame, number, count, True, barriers, ballot)

    return step
