"""Products of small M with FP8 and INT4 weights: every code by its own scale, and no token or part changes another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.emulator.shipped_run import Compiled, compiled, emulated, interpreted
from tests.shipped_launches import expected, make_arrays

Array = NDArray[Any]
NAMES = [f"{name}_{form}" for form in ("fp8", "int4") for name in ("matmul_few", "matmul_split", "matmul_silu_mul_few")]
NEAR = {"bf16": 2.0**-8, "f16": 2.0**-11, "f32": 2.0**-20}
"""One rounding of a result."""
TERMS = 2.0**-18
"""Roundings of sums in f32, relative to the sum of the magnitudes of their terms."""


def arrays_of(kernel: Compiled) -> dict[str, Array]:
    """Inputs whose scales are powers of two, different for neighbors in both directions; results are of the order of 1."""
    arrays = make_arrays(kernel.function, kernel.env)
    down, across = arrays["b_scales"].shape
    exponents = (np.arange(down)[:, None] * 3 + np.arange(across)[None, :] * 5) % 7 - (10 if "b_zeros" in arrays else 16)
    return {**arrays, "b_scales": np.exp2(exponents.astype(np.float64)).astype(arrays["b_scales"].dtype)}


@pytest.mark.parametrize("machine", [interpreted, emulated])
@pytest.mark.parametrize(("number", "arch"), [(0, "sm_90a"), (1, "sm_120a")])
@pytest.mark.parametrize("name", NAMES)
def test_results_are_those_of_the_dequantised_weights(name: str, number: int, arch: str, machine: Any) -> None:
    kernel = compiled(name, number, arch)
    arrays = arrays_of(kernel)
    after = machine(kernel, arrays)
    sizes: Any = {**arrays, "a": np.abs(arrays["a"].astype(np.float64))}
    if "b_zeros" in sizes:
        sizes["b_zeros"] = np.zeros_like(arrays["b_zeros"])
    else:
        sizes["b"] = np.abs(arrays["b"].astype(np.float64))
    for output, value in expected(kernel.function, arrays, kernel.env).items():
        near = NEAR["f32" if output == "parts" else str(kernel.function.constants["E"])]
        terms = np.abs(expected(kernel.function, sizes, kernel.env)[output])
        assert (
            np.abs(after[output].astype(np.float64) - value) <= 3 * near * np.abs(value) + TERMS * terms * (1 + terms)
        ).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_token_changes_no_other(name: str) -> None:
    kernel = compiled(name, 0, "sm_90a")
    arrays = arrays_of(kernel)
    before = interpreted(kernel, arrays)
    changed = {**arrays, "a": arrays["a"].copy()}
    changed["a"][7] = np.nan
    after = interpreted(kernel, changed)
    (output,) = (name for name in ("out", "parts") if name in after)
    rows = np.arange(len(arrays["a"])) != 7
    assert np.array_equal(after[output][..., rows, :], before[output][..., rows, :])
    assert np.isnan(after[output][..., 7, :].astype(np.float64)).any()


@pytest.mark.parametrize("form", ["fp8", "int4"])
def test_parts_are_sums_over_their_own_inputs(form: str) -> None:
    """Of three steps and more parts than steps: the last are zero."""
    kernel = compiled(f"matmul_split_{form}", 0, "sm_90a")
    parts = int(kernel.function.constants["S"])
    arrays = arrays_of(kernel)
    step = 128 * int(kernel.function.constants["SPLIT"])
    whole = interpreted(kernel, arrays)["parts"]
    run_of = -(-(arrays["a"].shape[1] // step) // parts) * step
    for part in range(parts):
        alone = {**arrays, "a": arrays["a"].copy()}
        alone["a"][:, : part * run_of] = 0
        alone["a"][:, (part + 1) * run_of :] = 0
        found = interpreted(kernel, alone)["parts"]
        assert np.array_equal(found[part], whole[part])
        assert not np.delete(found, part, axis=0).any()
