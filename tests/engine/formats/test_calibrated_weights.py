"""GPTQ: its codes are those of the plain definition, and outputs for other inputs err by much less than those of rounding."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from engine.tools.quantize.gptq import DAMPING, quantise, root_of_inverse, second_moments
from engine.tools.quantize.int4 import Int4
from engine.tools.quantize.int8 import Int8
from engine.tools.quantize.integers import IntegerFormat
from engine.tools.quantize.rounding import NoWeight, round_weight

BF16 = np.dtype(ml_dtypes.bfloat16)
Matrix = NDArray[np.float64]


def inputs_of(tokens: int, columns: int, seed: int = 0, rank: int = 12) -> NDArray[np.float32]:
    """Inputs of few directions, and a little of all others."""
    random = np.random.default_rng(seed)
    directions = np.random.default_rng(99).standard_normal((rank, columns))
    mixed = random.standard_normal((tokens, rank)) @ directions + 0.3 * random.standard_normal((tokens, columns))
    return mixed.astype(np.float32)


def weight_of(rows: int, columns: int) -> NDArray[Any]:
    return (np.random.default_rng(5).standard_normal((rows, columns)) * 0.02).astype(BF16)


def damped(inputs: NDArray[np.float32]) -> Matrix:
    x = inputs.astype(np.float64)
    moments = x.T @ x
    return moments + DAMPING * np.diag(moments).mean() * np.eye(len(moments))


def test_the_root_is_the_cholesky_factor_of_the_inverse() -> None:
    for columns in (1, 63, 200):
        inputs = inputs_of(500, columns)
        root = root_of_inverse(second_moments([inputs[:100], inputs[100:101], inputs[101:]]))
        expected = np.linalg.cholesky(np.linalg.inv(damped(inputs))).T
        assert (np.tril(root, -1) == 0).all() and root.dtype == np.float32
        assert np.abs(root - expected).max() < 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize(
    "inputs", [np.zeros((9, 80), np.float32), np.ones((9, 80), np.float32)], ids=["zeros", "one direction"]
)
def test_inputs_that_span_little_have_a_root(inputs: NDArray[np.float32]) -> None:
    root = root_of_inverse(second_moments([inputs]))
    assert np.isfinite(root).all() and (np.diag(root) > 0).all()


def one_column_after_the_other(weight: NDArray[Any], moments: Matrix, form: IntegerFormat) -> tuple[Matrix, Matrix]:
    """Codes (N, K) and scales (N, G) by the method's definition, without blocks and without Cholesky factors: the inverse of
    what is left of H, from which a column is eliminated when it is rounded (equations 2 and 3 of the paper); in f64."""
    left, inverse = weight.astype(np.float64), np.linalg.inv(moments)
    group = form.columns(left.shape[1])
    codes, scales = np.zeros_like(left), np.zeros((len(left), left.shape[1] // group))
    lowest, highest = -(1 << (form.bits - 1)), (1 << (form.bits - 1)) - 1
    for k in range(left.shape[1]):
        if k % group == 0:
            members = left[:, None, k : k + group].astype(np.float32)
            scales[:, k // group] = form.scales(members, weight.dtype)[:, 0].astype(np.float64)
        scale = scales[:, k // group]
        codes[:, k] = np.clip(np.rint(left[:, k] / scale), lowest, highest)
        error = (left[:, k] - codes[:, k] * scale) / inverse[k, k]
        left[:, k + 1 :] -= error[:, None] * inverse[k, k + 1 :]
        inverse -= np.outer(inverse[:, k], inverse[k]) / inverse[k, k]
    return codes, scales


CASES: list[tuple[IntegerFormat, int]] = [
    (Int4(32), 320), (Int4(96, "minmax"), 288), (Int4(128), 256), (Int4(160), 320), (Int8(), 300), (Int8(64), 192),
]  # fmt: skip


@pytest.mark.parametrize(("form", "columns"), CASES, ids=[f"{form.bits} bits, {form.columns(k)} of {k}" for form, k in CASES])
def test_codes_are_those_of_the_definition(form: IntegerFormat, columns: int) -> None:
    """Sums in f32 and f64 differ, so a few weights that are nearly between two codes may get the other one."""
    inputs, weight = inputs_of(700, columns), weight_of(600, columns)
    arrays, values, errors = quantise(weight, root_of_inverse(second_moments([inputs])), form)
    codes, scales = one_column_after_the_other(weight, damped(inputs), form)
    group = form.columns(columns)
    same = arrays["weight_scale"].astype(np.float64) == scales
    each = np.repeat(scales, group, axis=1)
    assert same.mean() > 0.99
    assert (np.abs(values - codes * each) < 1e-6 * each).mean() > 0.99
    difference = weight.astype(np.float64) - values
    assert errors.output_errors == pytest.approx(np.einsum("nk,kj,nj", difference, damped(inputs), difference), rel=2e-3)
    assert errors.errors == pytest.approx(np.square(difference).sum(), rel=1e-9)
    assert errors.largest_error == np.abs(difference).max()


@pytest.mark.parametrize("form", [Int4(64), Int8()], ids=["int4", "int8"])
def test_outputs_for_other_inputs_err_by_much_less(form: IntegerFormat) -> None:
    weight, others = weight_of(64, 256), inputs_of(400, 256, seed=1).astype(np.float64)
    _, values, _ = quantise(weight, root_of_inverse(second_moments([inputs_of(2000, 256)])), form)
    nearest = form.rounded(weight.astype(np.float32), weight.dtype)[1]
    after, before = (np.linalg.norm(others @ (weight.astype(np.float64) - found).T) for found in (values, nearest))
    assert after < 0.4 * before


def test_independent_inputs_change_no_code() -> None:
    """With H = c I no column can make up for another, and GPTQ is rounding to nearest."""
    weight, form = weight_of(700, 128), Int4(64)
    arrays, _, _ = quantise(weight, root_of_inverse(np.eye(128, dtype=np.float32) * 3), form)
    nearest, _ = round_weight(weight, form)
    assert {end: array.tobytes() for end, array in arrays.items()} == {end: array.tobytes() for end, array in nearest.items()}


def test_what_is_no_weight_is_refused_with_row_and_column() -> None:
    weight = weight_of(600, 64)
    weight[555, 7] = np.inf
    with pytest.raises(NoWeight, match=r"^holds inf at \[555, 7\]$"):
        quantise(weight, root_of_inverse(np.eye(64, dtype=np.float32)), Int4(64))
