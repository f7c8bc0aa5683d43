"""Order through strong accesses: release and acquire operations, and fences around relaxed ones (PTX ISA, section 8.7, 8.8).

A location that was written with release semantics holds what its writer knew (a token of `Clocks`); who reads it with acquire
semantics learns it. A fence lends its semantics to the relaxed operations before (acquire) and after it (release). An atomic
operation on a location keeps what earlier ones left there: it is part of their release sequence; a plain write ends it.
What was released or acquired in the scope of a block (`.cta`) reaches no other block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilec.emulator.access import Access
from tilec.emulator.frame import Frame
from tilec.emulator.races import Token

Offers = dict[tuple[int, bool], Token]
"""Tokens by the writer's block and whether their scope is that block."""

if TYPE_CHECKING:
    from tilec.emulator.machine import Machine


class Synchronise:
    """The tokens of a launch: `left` by memory index, `offered` (by whether their scope is the block) and `seen` by lane, for
    and from relaxed operations around fences."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.left: dict[int, Offers] = {}
        self.offered: dict[int, dict[bool, Token]] = {}
        self.seen: dict[int, Offers] = {}
        machine.on_wave.append(self._forget)
        machine.shadow.strong.on_taken.append(self._end)

    @staticmethod
    def of(machine: Machine) -> Synchronise:
        """The one of this launch."""
        found = machine.extensions.get("synchronise")
        if found is None:
            found = machine.extensions["synchronise"] = Synchronise(machine)
        return found

    def _end(self, granule: int) -> None:
        """A plain write took a granule over."""
        self.left.pop(granule << self.machine.shadow.shift, None)

    def _forget(self) -> None:
        self.left.clear()
        self.offered.clear()
        self.seen.clear()

    def fence(self, frame: Frame, kind: str, scope: str = "gpu") -> None:
        """A fence of every lane of the frame under its mask."""
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
        """The lane learns what reaches it: from its block, or from any whose scope is wider, where its own is."""
        block = self._block(lane)
        for (writer, narrow_too), token in offers.items():
            if writer == block or not (narrow or narrow_too):
                self.machine.clocks.acquire(np.array([lane]), token)

    def _block(self, lane: int) -> int:
        return int(self.machine.block_number[self.machine.block[lane]])

    def before_write(self, found: Access, order: str, scope: str | None, *, keep: bool = False) -> None:
        """A strong write: leaves a token where it releases. `keep`: an atomic operation, which continues what stands there."""
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
        """A strong read: learns, or keeps for the next fence, what the location holds."""
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
