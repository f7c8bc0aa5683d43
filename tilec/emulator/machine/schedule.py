"""The scheduler: which lanes of a wave run next, and for how long.

Seed 0 always picks the lowest instruction, so all lanes run in lock step and diverged lanes reconverge. Any other seed picks
instructions, warps and run lengths at random, so blocks, warps and the parts of a diverged warp interleave differently for each
seed, reproducibly.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.registers import Registers
from tilec.emulator.machine.wave import READY, Wave

NO_STOPS: Final = np.zeros(0, np.int64)
FOREVER: Final = 1 << 60
FRAME_BUDGET: Final = 5000


class Scheduler:
    """Picks frames. Seed 0: all ready lanes at the lowest instruction, until they reach an instruction where others are."""

    def __init__(self, wave: Wave, registers: Registers, seed: int, random: np.random.Generator) -> None:
        self.wave, self.registers, self.seed, self.random = wave, registers, seed, random
        self.yields = 0

    def clear(self) -> None:
        """Starts a new wave."""
        self.yields = 0

    def pick(self) -> tuple[Frame, NDArray[np.int64], int] | None:
        """The frame, the instructions where it must stop, and its instruction budget; None if no lane is ready."""
        ready = np.flatnonzero(self.wave.status == READY)
        if not len(ready):
            return None
        pcs = self.wave.pc[ready]
        if self.seed == 0:
            return self._in_order(ready, pcs)
        return self._at_random(ready, pcs)

    def yield_frame(self) -> None:
        """Makes the next pick of seed 0 prefer an instruction other than the lowest, where lanes are spinning."""
        self.yields += 1

    def _in_order(self, ready: NDArray[np.int64], pcs: NDArray[np.int64]) -> tuple[Frame, NDArray[np.int64], int]:
        low = int(pcs.min())
        if int(pcs.max()) == low:
            self.yields = 0
            return Frame(self.wave, self.registers, ready, low), NO_STOPS, FOREVER
        waiting = np.unique(pcs)
        if self.yields:
            low = int(waiting[self.yields % len(waiting)])
            self.yields = (self.yields + 1) % (2 * len(waiting))
        chosen = pcs == low
        return Frame(self.wave, self.registers, ready[chosen], low), waiting[waiting != low], FRAME_BUDGET

    def _at_random(self, ready: NDArray[np.int64], pcs: NDArray[np.int64]) -> tuple[Frame, NDArray[np.int64], int]:
        warp, random = self.wave.warp, self.random
        low = int(pcs[random.integers(len(pcs))])
        lanes = ready[pcs == low]
        warps = np.unique(warp[lanes])
        if len(warps) > 1:
            count = int(random.choice([1, max(1, len(warps) // 2), len(warps)]))
            kept = random.choice(warps, count, replace=False)
            lanes = lanes[np.isin(warp[lanes], kept)]
        budget = int(2 ** random.uniform(0, 12))
        others = pcs[np.isin(warp[ready], warp[lanes]) & (pcs != low)]
        return Frame(self.wave, self.registers, lanes, low), np.unique(others), budget
