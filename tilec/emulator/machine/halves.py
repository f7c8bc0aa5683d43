"""Poison of half a register: LLVM packs a defined value with an undefined one and later extracts the defined half.

A poisoned lane is poisoned as a whole unless `LOW_ONLY` or `HIGH_ONLY` is set too. Only instructions that move bits (mov with
its packing and unpacking, truncation) read halves (`Source.halves`). All others read the poison of the whole register, which
can add faults but never miss one.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

import numpy as np

from tilec.emulator.errors import Poison

LOW_ONLY: Final = 32
HIGH_ONLY: Final = 64
_KINDS: Final = np.uint8(0xFF & ~(LOW_ONLY | HIGH_ONLY))


def whole(poison: Poison | None) -> Poison | None:
    """The poison without its half flags."""
    return None if poison is None else poison & _KINDS


def _without(poison: Poison | None, flag: int) -> Poison | None:
    """Poison of one half: clear in lanes whose `flag` limits the poison to the other half."""
    if poison is None:
        return None
    half = np.where(poison & flag, 0, poison & _KINDS).astype(np.uint8)
    return half if half.any() else None


def low(poison: Poison | None) -> Poison | None:
    """Poison of a register's low half."""
    return _without(poison, HIGH_ONLY)


def high(poison: Poison | None) -> Poison | None:
    """Poison of a register's high half."""
    return _without(poison, LOW_ONLY)


def packed(parts: list[Poison | None]) -> Poison | None:
    """Poison of a register packed from equal parts (each poisoned as a whole or not at all), lowest first."""
    lower, upper = (_together(half) for half in (parts[: len(parts) // 2], parts[len(parts) // 2 :]))
    if lower is None and upper is None:
        return None
    if upper is None:
        assert lower is not None
        return np.where(lower, lower | LOW_ONLY, 0).astype(np.uint8)
    if lower is None:
        return np.where(upper, upper | HIGH_ONLY, 0).astype(np.uint8)
    flag = np.where(lower == 0, HIGH_ONLY, np.where(upper == 0, LOW_ONLY, 0))
    both = lower | upper
    return np.where(both, both | flag, 0).astype(np.uint8)


def _together(parts: list[Poison | None]) -> Poison | None:
    poisoned = [part for part in parts if part is not None]
    return reduce(np.bitwise_or, poisoned) if poisoned else None
