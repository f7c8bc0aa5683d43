"""Poison of a part of a register: LLVM packs defined values with undefined ones and later extracts the defined ones.

A poisoned lane is poisoned as a whole unless flags say which quarters of the register are defined. Only instructions that move
bits (mov with its packing and unpacking, prmt, bfi of whole quarters, truncation) read them (`Source.halves`). All others read
the poison of the whole register, which can add faults but never miss one.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

import numpy as np

from tilec.emulator.errors import Poison

DEFINED: Final = (8, 32, 64, 128)
"""The flag of each quarter, lowest first. In memory the last one is `STORED`, which no load leaves in a register."""
_KINDS: Final = np.uint8(0xFF & ~sum(DEFINED))


def whole(poison: Poison | None) -> Poison | None:
    """The poison without its flags."""
    return None if poison is None else poison & _KINDS


def quarter(poison: Poison | None, number: int) -> Poison | None:
    """Poison of a quarter: clear in lanes whose flag says that it is defined."""
    if poison is None:
        return None
    part = np.where(poison & DEFINED[number], 0, poison & _KINDS).astype(np.uint8)
    return part if part.any() else None


def low(poison: Poison | None) -> Poison | None:
    """Poison of a register's low half, as that of a register of half the size."""
    return _half(poison, 0)


def high(poison: Poison | None) -> Poison | None:
    """Poison of a register's high half, as that of a register of half the size."""
    return _half(poison, 1)


def _half(poison: Poison | None, number: int) -> Poison | None:
    first, second = (quarter(poison, 2 * number + k) for k in (0, 1))
    return packed([first, second])


def packed(parts: list[Poison | None]) -> Poison | None:
    """Poison of a register packed from equal parts, two of them or a multiple of four, lowest first. Of two parts, a half of
    each may be defined."""
    if len(parts) == 2:
        quarters = [half for part in parts for half in (quarter_pair(part, 0), quarter_pair(part, 1))]
    else:
        count = len(parts) // 4
        quarters = [_together([whole(part) for part in parts[k * count : (k + 1) * count]]) for k in range(4)]
    total = _together(quarters)
    if total is None or not total.any():
        return None
    flags = np.zeros(total.shape, np.uint8)
    for part, flag in zip(quarters, DEFINED, strict=True):
        flags |= np.uint8(flag) if part is None else np.where(part == 0, flag, 0).astype(np.uint8)
    return np.where((total != 0) & (flags != 0), total | flags, total).astype(np.uint8)


def quarter_pair(poison: Poison | None, number: int) -> Poison | None:
    """Poison of a half as one value: of two neighboring quarters."""
    return _together([quarter(poison, 2 * number), quarter(poison, 2 * number + 1)])


def _together(parts: list[Poison | None]) -> Poison | None:
    poisoned = [part for part in parts if part is not None]
    return reduce(np.bitwise_or, poisoned) if poisoned else None
