"""The number of blocks of a persistent kernel in a launch: few that process several tiles each, and as many as there are
tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import tensor_products
from tilec.emulator import launch


def test_orders_of_threads_bring_even_odd_and_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = tensor_products.made("bf16", 64, 64, stages=2, persistent=True)
    grids: list[int] = []
    monkeypatch.setattr(launch, "run", lambda module, entry, grid, *others, **more: grids.append(grid[0]))  # pyright: ignore
    for m in (64, 640):
        arrays: dict[str, Any] = {
            "a": np.zeros(m * 8, np.uint16),
            "b": np.zeros(512, np.uint16),
            "out": np.zeros(m * 64, np.uint16),
        }
        for seed in range(3):
            launch.emulate(kernel.ptx, kernel.manifest, arrays, {"M": m, "N": 64, "K": 8}, seed=seed)
    assert grids == [1, 1, 1, 2, 3, 10]
