"""Shifts of i64 by amounts that nothing is proven about: those inside the width, the negative ones and the large ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from block_machine import launch
from numpy.typing import NDArray

from tilec.frontend import load_kernel
from tilec.lowering import lower
from tilec.passes.schedule import prepare
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A

TEXT = '''"""One shift."""
import tilec
from tilec import In, Out, grid, i64, load, store


@tilec.kernel
def k(x: In[i64, 64], by: In[i64, 64], out: Out[i64, 64]):
    grid(1)
    store(out, 0, load(x, 0, shape=64) {word} load(by, 0, shape=64))
'''
VALUES = (5, -5, -1, 2**63 - 1, -(2**63), 3 << 61, 0, -(2**40) + 1)
AMOUNTS = (0, 1, 33, 63, 64, -1, 2**32, -(2**63))


def shift_results(folder: Path, word: str) -> list[tuple[int, int, int]]:
    """A value, an amount and the result, for all pairs."""
    path = folder / "k.py"
    path.write_text(TEXT.format(word=word), encoding="utf-8")
    plain, function = (load_kernel(path, {}, root=folder) for _ in range(2))
    x, by = (np.ascontiguousarray(side.ravel()) for side in np.meshgrid(np.array(VALUES), np.array(AMOUNTS)))
    out: NDArray[np.int64] = np.full(64, 99, np.int64)
    launch(plain, lower(prepare(function, SM_90A, Overrides(warps=1)), SM_90A), {"x": x, "by": by, "out": out}, {})
    return list(zip(x.tolist(), by.tolist(), out.tolist(), strict=True))


def test_a_shift_to_the_right_keeps_the_sign_for_every_amount(tmp_path: Path) -> None:
    for value, amount, result in shift_results(tmp_path, ">>"):
        assert result == value >> (amount if 0 <= amount < 64 else 63), (value, amount)


def test_a_shift_to_the_left_drops_the_bits_that_leave_the_width(tmp_path: Path) -> None:
    for value, amount, result in shift_results(tmp_path, "<<"):
        wide = value << amount if 0 <= amount < 64 else 0
        assert result == (wide + 2**63) % 2**64 - 2**63, (value, amount)
