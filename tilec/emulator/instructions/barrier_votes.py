"""The reduction of `bar.red`: predicates of the threads that arrive go in, the result of the phase goes to those that waited.

PTX ISA, "Parallel synchronization and communication instructions: bar, barrier": `.popc` is the number of true predicates,
`.and` and `.or` are over all threads in the barrier. A poisoned predicate poisons the result of every thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.errors import Poison
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.registers import Registers
from tilec.emulator.machine.sources import Target
from tilec.emulator.machine.wave import Wave

Index = NDArray[np.int64]


@dataclass(slots=True)
class Ballot:
    """The votes of lanes at one `bar.red`, at instruction `index`: its operation, and where its result goes."""

    lanes: Index
    votes: NDArray[np.bool_]
    poison: Poison | None
    operation: str
    write: Target
    index: int

    def part(self, lanes: Index) -> Ballot:
        """The votes of some of these lanes."""
        at = np.isin(self.lanes, lanes)
        poison = None if self.poison is None else self.poison[at]
        return Ballot(self.lanes[at], self.votes[at], poison, self.operation, self.write, self.index)


def announce(wave: Wave, registers: Registers, ballots: list[Ballot]) -> None:
    """Writes the result of a phase to every lane that voted in it; the lanes are suspended."""
    count = sum(int(ballot.votes.sum()) for ballot in ballots)
    voters = sum(len(ballot.lanes) for ballot in ballots)
    results = {"popc": np.uint32(count), "and": np.bool_(count == voters), "or": np.bool_(count > 0)}
    bits = np.bitwise_or.reduce([0, *(int(np.bitwise_or.reduce(b.poison)) for b in ballots if b.poison is not None)])
    for ballot in ballots:
        frame = Frame(wave, registers, ballot.lanes, ballot.index)
        poison = np.full(frame.n, bits, np.uint8) if bits else None
        ballot.write(frame, np.full(frame.n, results[ballot.operation]), poison)
        frame.flush()
