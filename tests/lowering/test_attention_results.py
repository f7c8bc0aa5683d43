"""The lowered code of attention, run thread by thread, at sequence lengths around the edges of its tiles."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from block_machine import Array, launch
from numpy.typing import NDArray

from tests import campaign, shipped
from tilec.lowering import Lowered, lower
from tilec.target.targets import SM_90A

sys.path.insert(0, str(shipped.ROOT / "kernels_src"))
try:
    reference: Any = importlib.import_module("reference_attention")
finally:
    sys.path.pop(0)

WIDTH = 128
SCALE = WIDTH**-0.5
DTYPES: dict[str, np.dtype] = {"bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype(np.float16)}
TOLERANCE = {"bf16": 2.5e-3, "f16": 4e-4}
"""Norm of the error over norm of the reference: half a unit in the last place, twice (weights, result)."""


def relative(found: NDArray[Any], expected: NDArray[Any]) -> float:
    return float(np.linalg.norm(found.astype(np.float64) - expected) / np.linalg.norm(expected))


def lowered(kernel: str, wanted: dict[str, int | float | bool | str]) -> tuple[Lowered, dict[str, float]]:
    function = shipped.load(kernel, wanted)
    constants = {name: float(value) for name, value in function.constants.items() if not isinstance(value, str)}
    return lower(shipped.prepared(kernel, SM_90A, wanted), SM_90A), constants


LENGTHS = ((1, 0, 64, 1), (17, 0, 64, 2), (65, 3, 128, 1), (127, 0, 128, 1), (129, 1, 192, 1), (5, 190, 256, 2),
           (64, 64, 128, 1), (2, 62, 64, 1))  # fmt: skip
"""Tokens, cached tokens before them, cache slots, and query heads per key head."""


@pytest.mark.parametrize(
    ("dtype", "lengths"),
    campaign.first(
        2,
        [
            ("bf16", LENGTHS[0::3]),
            ("f16", LENGTHS[1:2]),
            ("bf16", LENGTHS[1::3]),
            ("bf16", LENGTHS[2::3]),
            ("f16", LENGTHS[5:6]),
        ],
    ),
)
def test_flash_attention_at_odd_lengths(dtype: str, lengths: tuple[tuple[int, int, int, int], ...]) -> None:
    """The element type changes the instruction of a product and the last conversion, but no address."""
    rows = 64
    code, constants = lowered("flash_attention", {"E": dtype, "BM": rows})
    function = shipped.load("flash_attention", {"E": dtype, "BM": rows})
    random = np.random.default_rng(rows)
    for tokens, past, slots, group in lengths:
        q = random.standard_normal((tokens, 1, group, WIDTH)).astype(DTYPES[dtype])
        keys, values = random.standard_normal((2, slots, 1, WIDTH)).astype(DTYPES[dtype])
        out = np.full_like(q, np.nan)
        arrays: dict[str, Array] = {"q": q, "k_cache": keys, "v_cache": values, "out": out}
        sizes = {"T": tokens, "S": slots, "HKV": 1, "G": group, "past": past, "scale": SCALE}
        launch(function, code, arrays, constants | sizes)
        expected = reference.flash_attention(q, keys, values, past, SCALE)
        assert relative(out, expected) < TOLERANCE[dtype], sizes


@pytest.mark.parametrize("dtype", campaign.first(1, ["bf16", "f16"]))
def test_decode_attention_of_full_empty_and_partial_splits(dtype: str) -> None:
    code, constants = lowered("decode_attention", {"E": dtype})
    function = shipped.load("decode_attention", {"E": dtype})
    random = np.random.default_rng(7)
    for parts, slots, group, lengths in ((1, 32, 1, [1]), (64, 96, 8, [70]), (3, 96, 5, [33, 96]), (2, 288, 8, [257]),
                                         (2, 64, 2, [28, 32, 64])):  # fmt: skip
        batch = len(lengths)
        q = random.standard_normal((batch, 1, group, WIDTH)).astype(DTYPES[dtype])
        keys, values = random.standard_normal((2, batch, slots, 1, WIDTH)).astype(DTYPES[dtype])
        partial = np.full((batch, parts, 1, group, WIDTH), np.nan, np.float32)
        maxima, sums = np.full((2, batch, parts, 1, group), np.nan, np.float32)
        filled_slots = np.array(lengths, np.int32)
        arrays: dict[str, Array] = {
            "q": q, "k_cache": keys, "v_cache": values, "lengths": filled_slots,
            "partial": partial, "maxima": maxima, "sums": sums,
        }  # fmt: skip
        sizes = {"B": batch, "P": parts, "S": slots, "HKV": 1, "G": group, "scale": SCALE}
        launch(function, code, arrays, constants | sizes)
        tile = int(constants["BN"])
        expected = reference.decode_attention(q, keys, values, filled_slots, SCALE, parts, tile)
        filled: NDArray[np.bool_] = np.isfinite(expected[1])
        assert np.array_equal(maxima == -np.inf, ~filled)
        assert relative(maxima[filled], expected[1][filled]) < 1e-5
        assert relative(sums, expected[2]) < 1e-5
        assert relative(partial, expected[0]) < TOLERANCE[dtype], sizes
        merged = reference.decode_merge(partial, maxima, sums)
        for b in range(batch):
            whole = reference.flash_attention(q[b : b + 1], keys[b], values[b], lengths[b] - 1, SCALE)
            assert relative(merged[b], whole[0]) < TOLERANCE[dtype]
