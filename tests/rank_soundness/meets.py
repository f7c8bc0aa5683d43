"""The meets of all blocks of all ranks, simulated count by count, and which ranks' earlier launches each block then knows of.

The protocol is that of `tilec/ir/SEMANTICS.md`, "Ranks", and of the table of signals in `tilec/ir/ops/rank_ops.py`: a word of
signals has a parameter, the rank in whose memory it is, its block, its column and its slot. In: the meets of each block in
the order in which it executes them. Out: faults, and by block what it knows after each of its meets.

A meet orders the launches before this one only, never what one rank writes in a launch before what another reads in it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tilec.ir.core import Op

ENTERED: Final = 0
"""Column in which another rank says how many meets it has entered."""
MADE: Final = 1
"""Column in which a rank counts its own meets."""
MODULUS: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class Entry:
    """A block executes a meet. `number`: what it says that its rank is; `signals`: the parameter and the rank in whose memory
    they are, by place."""

    op: Op
    number: int
    signals: tuple[tuple[str, int], ...]


@dataclass(slots=True)
class Block:
    """A block of a rank. `known`: before its first meet and after each, the ranks whose earlier launches it comes after."""

    rank: int
    number: int
    entries: list[Entry] = field(default_factory=list[Entry])
    known: list[frozenset[int]] = field(default_factory=list[frozenset[int]])
    waits_for: dict[int, int] = field(default_factory=dict[int, int])  # by slot: the count that it has entered with

    def __post_init__(self) -> None:
        self.known = [frozenset({self.rank})]  # launches of one rank come one after the other

    @property
    def next(self) -> Entry | None:
        """The meet that it is in, or enters next."""
        done = len(self.known) - 1
        return self.entries[done] if done < len(self.entries) else None


@dataclass(frozen=True, slots=True)
class MeetFault:
    """`deadlock`: a block waits for ever; `signal`: a meet writes or reads a word that is not its rank's."""

    kind: str
    op: Op
    rank: int
    block: int
    text: str


Word = tuple[str, int, int, int, int]


class Meets:
    """All meets of a launch. `counts`: how many meets the blocks have made before it, by signal parameter; all ranks have made
    equally many, whatever kernels were launched."""

    def __init__(self, blocks: Sequence[Block], counts: Mapping[str, int]) -> None:
        self.blocks = blocks
        self.counts = counts
        self.words: dict[Word, tuple[int, frozenset[int]]] = {}
        self.faults: list[MeetFault] = []

    def run(self, seed: int) -> list[MeetFault]:
        """Let blocks go on in some order until none can; at most one fault of each kind and operation."""
        order, moved = list(self.blocks), 1
        r = random.Random(seed)
        while moved:
            r.shuffle(order)
            moved = sum(self._goes_on(block) for block in order)
        for block in self.blocks:
            if (stuck := block.next) is not None:
                self._fault("deadlock", stuck, block, f"it waits in meet {len(block.known)} of {len(block.entries)}")
        return self.faults

    def _fault(self, kind: str, entry: Entry, block: Block, text: str) -> None:
        if not any((fault.kind, fault.op) == (kind, entry.op) for fault in self.faults):
            self.faults.append(MeetFault(kind, entry.op, block.rank, block.number, text))

    def _word(self, word: Word) -> tuple[int, frozenset[int]]:
        return self.words.get(word, (self.counts.get(word[0], 0), frozenset()))

    def _goes_on(self, block: Block) -> bool:
        """Whether a block enters its next meet, or leaves its last one."""
        entry = block.next
        if entry is None:
            return False
        if not 0 <= entry.number < len(entry.signals):
            self._fault("signal", entry, block, f"it says that its rank is {entry.number}")
            return False
        if not block.waits_for:
            self._enter(block, entry)
            return True
        own, seen = entry.signals[entry.number], list[frozenset[int]]()
        for slot, count in block.waits_for.items():
            found, known = self._word((*own, block.number, ENTERED, slot))
            if (found - count) % MODULUS >= MODULUS // 2:
                return False
            seen.append(known)
        block.known.append(block.known[-1].union(*seen))
        block.waits_for = {}
        return True

    def _enter(self, block: Block, entry: Entry) -> None:
        """Thread `slot` counts, and tells rank `slot`."""
        own = entry.signals[entry.number]
        if own[1] != block.rank:
            self._fault("signal", entry, block, f"it counts in the memory of rank {own[1]}")
        if entry.number != block.rank:
            self._fault("signal", entry, block, f"it says that it is rank {entry.number}")
        for slot, there in enumerate(entry.signals):
            if there[1] != slot:
                self._fault("signal", entry, block, f"it tells rank {there[1]} what is for rank {slot}")
            made = (*own, block.number, MADE, slot)
            count = (self._word(made)[0] + 1) % MODULUS
            self.words[made] = (count, frozenset())
            self.words[(*there, block.number, ENTERED, entry.number)] = (count, block.known[-1])
            block.waits_for[slot] = count
