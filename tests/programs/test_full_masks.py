"""Masks in the version of a block whose boxes lie inside: which are dropped, and results at every length around a tile."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.programs.machines import manifest
from tilec.codegen import ptx
from tilec.emulator import emulate
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Function
from tilec.ir.ops import Compare, If
from tilec.lowering import lower
from tilec.passes.prover import prove
from tilec.passes.schedule import prepare
from tilec.passes.schedule.simplify import full_masks
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Masked:
    """Each block marks, in a tile of 64 numbers from `first` on, those for which `mask` holds; other numbers are 0."""

    mask: str
    first: str = "i * 64"
    requires: str = "N <= 4096"

    def function(self, folder: Path) -> Function:
        text = f'''"""Marks."""
import tilec
from tilec import Dim, In, Out, arange, bid, cdiv, f32, grid, load, requires, store, where


class N(Dim):
    """numbers"""


@tilec.kernel
def k(x: In[f32, N], out: Out[f32, N]):
    requires({self.requires})
    grid(cdiv(N, 64))
    i = bid(0)
    first = {self.first}
    v = load(x, offset=first, shape=64, pad=0)
    store(out, i, where({self.mask}, v, -1), mask=True)
'''
        path = folder / "k.py"
        path.write_text(text)
        return load_kernel(path, {}, root=folder)


def _compares(masked: Masked, folder: Path) -> int:
    """Comparisons of tiles in the version of a block inside."""
    prepared = prepare(masked.function(folder), SM_90A, Overrides(warps=1))
    (branch,) = [op for op in prepared.body.walk() if isinstance(op, If)]
    return sum(isinstance(op, Compare) and op.result.tile.rank > 0 for op in branch.regions[0].walk())


WHICH = [
    # a position in the tile, and one in the tensor
    (Masked("arange(64) < N"), 0), (Masked("N > arange(64)"), 0), (Masked("first + arange(64) < N"), 0),
    (Masked("arange(64) + first < N"), 0),
    # beyond the tile, other relations, and what no box shows
    (Masked("arange(64) + 1 < N"), 1), (Masked("first + (arange(64) + 1) < N"), 1), (Masked("first + arange(64) * 2 < N"), 1),
    (Masked("first + (arange(64) - 1) < N"), 1), (Masked("arange(64) <= N"), 1), (Masked("arange(64) < N - 64"), 1),
    (Masked("arange(64) > 3"), 1), (Masked("2 * first + arange(64) < N"), 1),
]  # fmt: skip


@pytest.mark.parametrize(("masked", "left"), WHICH, ids=[case[0].mask for case in WHICH])
def test_which_masks_are_dropped(masked: Masked, left: int, tmp_path: Path) -> None:
    assert _compares(masked, tmp_path) == left
    for length in (1, 63, 64, 65, 127, 128, 129, 200):
        before, expected, found = _results(masked, length, tmp_path)
        np.testing.assert_array_equal(found, expected, err_msg=str(before))


def _results(masked: Masked, length: int, folder: Path) -> tuple[Array, Array, Array]:
    """Input, and what the interpreter and the emulator make of it."""
    function = masked.function(folder)
    prove(function)
    x = np.arange(1, length + 1, dtype=np.float32)
    expected = {"x": x.copy(), "out": np.zeros_like(x)}
    run(function, expected)
    code = lower(prepare(masked.function(folder), SM_90A, Overrides(warps=1)), SM_90A)
    arrays = {"x": x.copy(), "out": np.zeros_like(x)}
    report = emulate(ptx.to_ptx(code.mlir, SM_90A), manifest(function, code, SM_90A), arrays, {"N": length}, seed=0)
    assert report.clean, report.faults
    return x, expected["out"], report.tensors["out"].view(np.float32)


def test_a_mask_that_is_dropped_by_mistake_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def always(*_: object) -> bool:
        return True

    masked = Masked("first + (arange(64) + 1) < N")
    _, expected, found = _results(masked, 128, tmp_path)
    np.testing.assert_array_equal(found, expected)
    monkeypatch.setattr(full_masks, "_is_true", always)
    _, expected, found = _results(masked, 128, tmp_path)
    assert (found != expected).any()
