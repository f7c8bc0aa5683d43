"""The registers of all lanes of a wave: raw unsigned values (bool for predicates) and their poison."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilec.emulator.errors import Lanes, Poison
from tilec.emulator.machine.scalar_types import RAW, TYPES
from tilec.emulator.ptx.syntax import Function


class Registers:
    """`values` and `poison` by register index; None: never written, or not poisoned. `owned`: the registers whose arrays no
    frame shares, which may be changed in place."""

    def __init__(self, function: Function) -> None:
        self.dtypes: list[np.dtype[Any]] = [np.dtype(RAW[TYPES[register.type][0]]) for register in function.registers]
        self.count = len(self.dtypes)
        self.clear()

    def clear(self) -> None:
        """Starts a new wave, with nothing written."""
        self.values: list[Lanes | None] = [None] * self.count
        self.poison: list[Poison | None] = [None] * self.count
        self.owned: set[int] = set()
