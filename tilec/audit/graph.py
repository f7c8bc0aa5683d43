"""Paths through a PTX function: which instructions every path passes before another, or after it.

Instructions that are executed one after the other are a block; the last block is the end of the function. A branch by a table
leads to each of its labels, and one whose label is not in the function may lead to any block.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property
from typing import Any, Final

ENDS: Final = ("ret", "exit", "trap")
_LEAVES: Final = ("bra", "brx", *ENDS)


class Graph:
    """The blocks of a function of the emulator's parser: `starts` has the index of the first instruction of each, `next` the
    blocks that may be executed after it."""

    def __init__(self, function: Any) -> None:
        self._function = function
        instructions: list[Any] = function.instructions
        count = len(instructions)
        leaves = {position + 1 for position, one in enumerate(instructions) if one.opcode in _LEAVES}
        self.starts = sorted({0, count, *leaves, *function.labels.values()})
        self.end = len(self.starts) - 1
        self.next: list[set[int]] = [self._following(block) for block in range(self.end)] + [set()]

    def block_of(self, position: int) -> int:
        """The block of an instruction."""
        return bisect_right(self.starts, position) - 1

    def passed_before(self, earlier: int, later: int) -> bool:
        """Whether every path to the instruction at index `later` passes the one at `earlier` first."""
        first, second = self.block_of(earlier), self.block_of(later)
        return earlier < later if first == second else first in self._before[second]

    def entered_from(self, block: int) -> int | None:
        """The block that always precedes the first run of `block`, which may repeat itself; None if there are several, or if
        the function begins here."""
        others = self.previous[block] - {block}
        return others.copy().pop() if len(others) == 1 and block else None

    def until_paths_meet(self, position: int) -> set[int]:
        """The instructions on the paths from a branch up to the block that all its paths to the end pass first."""
        branch = self.block_of(position)
        later = self._met[branch] - {branch}
        # The first of them: all others are passed after it.
        joined = next((block for block in later if self._met[block] == later), None)
        reached: set[int] = set()
        left = [block for block in self.next[branch] if block != joined]
        while left:
            block = left.pop()
            if block not in reached:
                reached.add(block)
                left += [following for following in self.next[block] if following != joined]
        return {at for block in reached - {self.end} for at in range(self.starts[block], self.starts[block + 1])}

    def _following(self, block: int) -> set[int]:
        one = self._function.instructions[self.starts[block + 1] - 1]
        following: set[int] = set()
        if one.opcode in ("bra", "brx"):
            name = getattr(one.operands[-1], "name", "")
            labels = self._function.tables.get(name, ()) if one.opcode == "brx" else (name,)
            known = bool(labels) and all(label in self._function.labels for label in labels)
            positions = [self._function.labels[label] for label in labels] if known else self.starts
            following |= {self.block_of(position) for position in positions}
        elif one.opcode in ENDS:
            following.add(self.end)
        if one.guard is not None or one.opcode not in _LEAVES:
            following.add(block + 1)
        return following

    @cached_property
    def _met(self) -> list[set[int]]:
        """For each block, those that every path from it to the end passes, itself included; all blocks if there is no path."""
        return _passed_by_all(self.next, self.end)

    @cached_property
    def previous(self) -> list[set[int]]:
        """The blocks that may be executed before each."""
        previous: list[set[int]] = [set() for _ in self.next]
        for block, following in enumerate(self.next):
            for one in following:
                previous[one].add(block)
        return previous

    @cached_property
    def _before(self) -> list[set[int]]:
        """For each block, those that every path to it passes, itself included; all blocks if there is no path."""
        return _passed_by_all(self.previous, 0)


def _passed_by_all(neighbours: list[set[int]], target: int) -> list[set[int]]:
    """For each block, those that every path from it to `target` passes, both included; all blocks if there is no path."""
    every = set(range(len(neighbours)))
    passed = [{target} if block == target else every for block in range(len(neighbours))]
    order = range(len(neighbours)) if target == 0 else reversed(range(len(neighbours)))
    blocks = [block for block in order if block != target]
    changed = True
    while changed:
        changed = False
        for block in blocks:
            found = {block} | every.intersection(*(passed[one] for one in neighbours[block])) if neighbours[block] else every
            changed |= found != passed[block]
            passed[block] = found
    return passed
