"""Order through strong accesses: release and acquire operations, and fences around relaxed ones (PTX ISA, section 8.7, 8.8).

A location that was written with release semantics holds what its writer knew (a token of `Clocks`); who reads it with acquire
semantics learns it. A fence lends its semantics to the relaxed operations before (acquire) and after it (release). An atomic
operation on a location keeps what earlier ones left there: it is part of their release sequence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilec.emulator.access import Access
from tilec.emulator.frame import Frame
from tilec.emulator.races import Token

if TYPE_CHECKING:
    from tilec.emulator.machine import Machine


class Synchronise:
    """The tokens of a launch: `left` by memory index, `offered` and `seen` by lane (through fences)."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.left: dict[int, Token] = {}
        self.offered: dict[int, Token] = {}
        self.seen: dict[int, Token] = {}
        machine.on_wave.append(self._forget)

    @staticmethod
    def of(machine: Machine) -> Any:
        """The one of this launch."""
        return machine.extensions.setdefault("synchronise", None) or machine.extensions.__setitem__(
            "synchronise", Synchronise(machine)
        ) or machine.extensions["synchronise"]

    def _forget(self) -> None:
        self.left.clear()
        self.offered.clear()
        self.seen.clear()

    def fence(self, frame: Frame, kind: str) -> None:
        """A fence of every lane of the frame under its mask."""
        clocks = self.machine.clocks
        for at in frame.active():
            lane = int(frame.lanes[at])
            one = np.array([lane])
            if kind != "release" and lane in self.seen:
                clocks.acquire(one, self.seen.pop(lane))
            if kind != "acquire":
                self.offered[lane] = clocks.rows(one)[0]
                self.offered[lane][lane] = clocks.now
        clocks.now += 1

    def before_write(self, found: Access, order: str, scope: str | None, *, keep: bool = False) -> None:
        """A strong write: leaves a token where it releases. `keep`: an atomic operation, which continues what stands there."""
        clocks = self.machine.clocks
        for lane, index in zip(found.lanes.tolist(), found.index.tolist(), strict=True):
            token = self.offered.get(lane)
            if order in ("release", "acq_rel", "sc"):
                token = clocks.release(np.array([lane]))
            old = self.left.get(index) if keep else None
            if token is not None:
                self.left[index] = token if old is None else np.maximum(old, token)
            elif not keep:
                self.left.pop(index, None)

    def after_read(self, found: Access, order: str, scope: str | None) -> None:
        """A strong read: learns, or keeps for the next fence, what the location holds."""
        clocks = self.machine.clocks
        for lane, index in zip(found.lanes.tolist(), found.index.tolist(), strict=True):
            token = self.left.get(index)
            if token is None:
                continue
            if order in ("acquire", "acq_rel", "sc"):
                clocks.acquire(np.array([lane]), token)
            else:
                old = self.seen.get(lane)
                self.seen[lane] = token if old is None else np.maximum(old, token)
