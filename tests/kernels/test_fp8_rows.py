"""Products of two to eight rows with FP8 weights: every code times the scale of its block, and no row changes another."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from tests import shipped_launches
from tests.emulator.shipped_run import Compiled, compiled, emulated, interpreted

Array = NDArray[Any]

ADDED = "matvec_add_scaled_rows_fp8"
NORMED = "scaled_matvec_rows_fp8"
GATED = "scaled_matvec_silu_mul_rows_fp8"
FINITE = np.array([code for code in range(256) if code & 0x7F != 0x7F], np.uint8)
"""Codes of e4m3 without its two NaNs."""


def arrays_of(kernel: Compiled, seed: int = 0) -> dict[str, Array]:
    """Inputs of a launch whose weights have every finite code."""
    arrays = shipped_launches.make_arrays(kernel.function, kernel.env, seed)
    random = np.random.default_rng([seed, 254])
    codes = random.permuted(np.resize(FINITE, arrays["w"].size)).reshape(arrays["w"].shape)
    return {**arrays, "w": codes.view(ml_dtypes.float8_e4m3fn)}


@pytest.mark.parametrize("machine", [interpreted, emulated])
@pytest.mark.parametrize(("number", "arch"), [(0, "sm_90a"), (1, "sm_120a")])
def test_each_weight_counts_as_its_code_times_the_scale_of_its_block(number: int, arch: str, machine: Any) -> None:
    kernel = compiled(ADDED, number, arch)
    arrays = arrays_of(kernel)
    down, across = arrays["w_scales"].shape
    assert set(arrays["w"].view(np.uint8).flat) == set(FINITE)
    arrays["w_scales"] = np.exp2(np.arange(down * across, dtype=np.float32) % 24 - 16).reshape(down, across)
    arrays["residual"][:] = 0
    rows, inputs = arrays["x"].shape
    weights = arrays["w"].astype(np.float64) * arrays["w_scales"].repeat(128, 0).repeat(128, 1)
    for first in (0, 77):
        columns = [(first + 397 * row) % inputs for row in range(rows)]  # in other blocks, and in other places of them
        arrays["x"][:] = 0
        arrays["x"][range(rows), columns] = 1
        found = machine(kernel, arrays)["residual"]
        wanted = weights[:, columns].T
        assert np.array_equal(found.astype(np.float64), wanted.astype(found.dtype).astype(np.float64))


@pytest.mark.parametrize("machine", [interpreted, emulated])
@pytest.mark.parametrize(("name", "number"), [(ADDED, 0), (NORMED, 0), (GATED, 0), (NORMED, 1)])
def test_no_row_changes_another(name: str, number: int, machine: Any) -> None:
    kernel = compiled(name, number, "sm_90a")
    arrays = arrays_of(kernel)
    arrays["w_scales"] = np.abs(arrays["w_scales"]) / 512 + np.float32(2.0**-9)
    output, largest = ("residual" if name == ADDED else "out"), 2.0 ** (100 if kernel.function.constants["E"] == "bf16" else 10)
    calm = machine(kernel, arrays)[output]
    assert np.isfinite(calm.astype(np.float64)).all()
    for extreme in (largest, -largest, 1 / largest, np.inf, np.nan, 0.0):
        wild = {**arrays, "x": arrays["x"].copy()}
        wild["x"][1::2] = extreme
        found = machine(kernel, wild)[output]
        assert np.array_equal(found[::2].view(np.uint16), calm[::2].view(np.uint16)), extreme
        assert not np.array_equal(found[1::2].view(np.uint16), calm[1::2].view(np.uint16))


@pytest.mark.parametrize("name", [ADDED, NORMED])
def test_tiny_rows_next_to_huge_ones_are_as_right_as_alone(name: str) -> None:
    kernel = compiled(name, 0, "sm_90a")
    arrays = arrays_of(kernel)
    sizes = np.exp2(np.linspace(-90, 90, len(arrays["x"])))[:, None]
    arrays["x"] = (arrays["x"].astype(np.float64) * sizes).astype(arrays["x"].dtype)
    if name == ADDED:
        arrays["residual"][:] = 0
    wanted = shipped_launches.expected(kernel.function, {key: array.copy() for key, array in arrays.items()}, kernel.env)
    found = emulated(kernel, arrays)
    for output in ("residual",) if name == ADDED else ("out",):
        values = np.asarray(wanted[output], np.float64)
        difference = np.linalg.norm(found[output].astype(np.float64) - values, axis=1)
        assert (difference <= 2.0**-8 * np.linalg.norm(values, axis=1)).all()
