"""Order through strong accesses: release and acquire operations, and fences around relaxed ones (PTX ISA, sections 8.7, 8.8).

A write with release semantics stores a token of `Clocks`, the writer's knowledge, with its location; a read with acquire
semantics merges the token into the reader's knowledge. A fence makes earlier relaxed reads acquire and later relaxed writes
release. An atomic operation keeps the tokens of its location, because it continues their release sequence; a plain write ends
the sequence. A release or acquire of block scope (`.cta`) has no effect on other blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilec.emulator.machine.access import Access
from tilec.emulator.machine.frame import Frame
from tilec.emulator.ordering.races import Token

Offers = dict[tuple[int, bool], Token]
"""Tokens by the writer's block and whether their scope is that block."""

if TYPE_CHECKING:
    from tilec.emulator.machine.machine import Machine


class Synchronise:
    """The tokens of a launch: `left` at each memory index; `offered` by each lane's last release fence (by whether its scope
    is the block), for later relaxed writes; `seen` by each lane's relaxed reads, for its next acquire fence."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.left: dict[int, Offers] = {}
        self.offered: dict[int, dict[bool, Token]] = {}
        self.seen: dict[int, Offers] = {}
        machine.on_wave.append(self._forget)
        machine.shadow.strong.on_taken.append(self._end)

    @staticmethod
    def of(machine: Machine) -> Synchronise:
        """The instance of this launch, created at its first use."""
        found = machine.extensions.get("synchronise")
        if found is None:
            found = machine.extensions["synchronise"] = Synchronise(machine)
        return found

    def _end(self, granule: int) -> None:
        """Ends the release sequence at a granule that a plain write overwrites."""
        self.left.pop(granule << self.machine.shadow.shift, None)

    def _forget(self) -> None:
        self.left.clear()
        self.offered.clear()
        self.seen.clear()

    def fence(self, frame: Frame, kind: str, scope: str = "gpu") -> None:
        """A fence by every lane of the frame under its mask."""
        clocks, narrow = self.machine.clocks, scope == "cta"
        for at in frame.active():
            lane = int(frame.lanes[at])
            one = np.array([lane])
            if kind != "release" and lane in self.seen:
                self._learn(lane, self.seen[lane], narrow)
                if not narrow:
                    del self.seen[lane]
            if kind != "acquire":
                token = clocks.rows(one)[0]
                token[lane] = clocks.now
                self.offered.setdefault(lane, {})[narrow] = token
        clocks.now += 1

    def _learn(self, lane: int, offers: Offers, narrow: bool) -> None:
        """The lane acquires the tokens of its own block and, unless a scope is the block (its own, `narrow`, or the token's),
        those of other blocks."""
        block = self._block(lane)
        for (writer, narrow_too), token in offers.items():
            if writer == block or not (narrow or narrow_too):
                self.machine.clocks.acquire(np.array([lane]), token)

    def _block(self, lane: int) -> int:
        return int(self.machine.block_number[self.machine.block[lane]])

    def before_write(self, found: Access, order: str, scope: str | None, *, keep: bool = False) -> None:
        """A strong write: stores a token if it releases, directly or after a fence. `keep`: an atomic operation, which keeps
        the tokens already there."""
        clocks = self.machine.clocks
        narrow = scope == "cta"
        for lane, index in zip(found.lanes.tolist(), found.index.tolist(), strict=True):
            tokens = [(fenced or narrow, token) for fenced, token in self.offered.get(lane, {}).items()]
            if order in ("release", "acq_rel", "sc"):
                tokens.append((narrow, clocks.release(np.array([lane]))))
            offers = dict(self.left.get(index, {})) if keep else {}
            for reach, token in tokens:
                key = self._block(lane), reach
                offers[key] = np.maximum(offers[key], token) if key in offers else token
            if offers:
                self.left[index] = offers
            else:
                self.left.pop(index, None)

    def after_read(self, found: Access, order: str, scope: str | None) -> None:
        """A strong read: acquires the location's tokens, or keeps them for the next fence."""
        narrow = scope == "cta"
        for lane, index in zip(found.lanes.tolist(), found.index.tolist(), strict=True):
            offers = self.left.get(index)
            if offers is None:
                continue
            if order in ("acquire", "acq_rel", "sc"):
                self._learn(lane, offers, narrow)
                continue
            block = self._block(lane)
            seen = dict(self.seen.get(lane, {}))
            for key, token in offers.items():
                if key[0] == block or not (narrow or key[1]):
                    seen[key] = np.maximum(seen[key], token) if key in seen else token
            self.seen[lane] = seen
