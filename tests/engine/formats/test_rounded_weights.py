"""Rounded weights are, bit for bit, those of a plain reference, and no other code of their scale is nearer."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import MODULE, quantised, words, write
from numpy.typing import NDArray
from plain_rounding import E4M3, to_fp8, to_int4

from engine.formats.dequantise import dequantise
from engine.tools.quantize import rounding
from engine.tools.quantize.fp8 import Fp8
from engine.tools.quantize.int4 import Int4
from engine.tools.quantize.int8 import Int8
from engine.tools.quantize.rounding import Errors, Format, NoWeight, round_weight

DTYPES = {"bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype(np.float16)}


def weights(rows: int, columns: int, dtype: str, seed: int = 0) -> NDArray[Any]:
    """Random weights with rows of zeros, of the least numbers, with an outlier, and of ties between two codes."""
    random = np.random.default_rng(seed)
    weight = random.standard_normal((rows, columns)) * 0.02
    weight[1] = 0
    weight[2] *= 1e-36 if dtype == "bf16" else 1e-5
    weight[3, 5] = 3.0
    weight[4] = np.arange(columns) % 16 - 7.5
    return weight.astype(DTYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_fp8_is_that_of_the_reference(dtype: str) -> None:
    weight = weights(136, 264, dtype)
    weight[:128, :128] = 0  # a block of zeros
    weight[128:, 128:256] = weight[2, 128:256]  # one of the least numbers
    arrays, _ = round_weight(weight, Fp8(), threads=2)
    codes, scales = to_fp8(weight.astype(np.float32))
    assert arrays["weight"].view(np.uint8).tobytes() == codes.tobytes()
    assert arrays["weight_scale_inv"].view(np.uint16).tobytes() == scales.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("observer", ["mse", "minmax"])
def test_int4_is_that_of_the_reference(observer: str, dtype: str) -> None:
    weight = weights(11, 192, dtype)
    arrays, _ = round_weight(weight, Int4(32, observer), threads=2)
    codes, scales = to_int4(weight.astype(np.float32), 32, observer, dtype)
    assert arrays["weight_packed"].tobytes() == words(codes + 8, 4).tobytes()
    assert arrays["weight_scale"].dtype == DTYPES[dtype]
    assert arrays["weight_scale"].view(np.uint16).tobytes() == scales.tobytes()
    assert arrays["weight_shape"].tolist() == [11, 192]


def read_back(weight: NDArray[Any], form: Format) -> tuple[NDArray[np.float32], Errors]:
    """The values that the engine's reader finds in a file of the rounded weight, and the errors that rounding reported."""
    arrays, errors = round_weight(weight, form, threads=1)
    with TemporaryDirectory() as path:
        folder = Path(path)
        write(folder, {f"{MODULE}.{end}": array for end, array in arrays.items()})
        found = quantised(folder, form.config(["lm_head"]), {f"{MODULE}.weight": weight.shape})
        return dequantise(found[f"{MODULE}.weight"].form()), errors


def check_errors(weight: NDArray[Any], values: NDArray[np.float32], errors: Errors) -> NDArray[np.float64]:
    """The differences, which must be those that were reported."""
    difference = weight.astype(np.float64) - values
    assert errors.largest_error == np.abs(difference).max() and errors.largest_weight == np.abs(weight.astype(np.float64)).max()
    assert errors.errors == pytest.approx(np.square(difference).sum(), rel=1e-12)
    assert errors.weights == pytest.approx(np.square(weight.astype(np.float64)).sum(), rel=1e-12)
    return difference


@st.composite
def some_weights(draw: st.DrawFn, height: int, width: int) -> NDArray[Any]:
    """Any finite numbers of a dtype whose magnitude is within a few powers of two of each other, or not at all."""
    dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
    random = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    exponent = draw(st.integers(-24, 14) if dtype == np.float16 else st.integers(-120, 120))
    spread = draw(st.integers(0, 30))
    values = random.uniform(-2, 2, (height, width)) * np.exp2(exponent - random.integers(0, spread + 1, (height, width)))
    values[random.uniform(size=values.shape) < draw(st.sampled_from([0, 0.1, 0.9]))] = 0
    return values.astype(dtype)


@settings(max_examples=60, deadline=None)
@given(some_weights(5, 160))
def test_fp8_takes_the_nearest_code_of_each_weight(weight: NDArray[Any]) -> None:
    values, errors = read_back(weight, Fp8())
    difference = np.abs(check_errors(weight, values, errors))
    arrays, _ = round_weight(weight, Fp8())
    scales = np.repeat(arrays["weight_scale_inv"].astype(np.float64), 128, axis=1)[:, :160]
    magnitudes = np.array([float(value) for value, _ in E4M3])
    grid = np.abs(np.abs(weight.astype(np.float64))[..., None] - magnitudes * scales[..., None])  # exact in f64
    assert (difference == grid.min(axis=2)).all()
    half_step = np.maximum(np.abs(weight.astype(np.float64)) / 16, scales * 2.0**-10)
    assert (difference <= half_step).all()


@settings(max_examples=60, deadline=None)
@given(some_weights(3, 64), st.sampled_from(["mse", "minmax"]))
def test_int4_takes_the_nearest_code_of_each_weight(weight: NDArray[Any], observer: str) -> None:
    form = Int4(32, observer)
    values, errors = read_back(weight, form)
    difference = np.abs(check_errors(weight, values, errors))
    scales = np.repeat(round_weight(weight, form)[0]["weight_scale"].astype(np.float64), 32, axis=1)
    grid = np.abs(weight.astype(np.float64)[..., None] - np.arange(-8, 8) * scales[..., None])
    assert (difference == grid.min(axis=2)).all()
    if observer == "minmax":
        assert (difference <= scales / 2).all()
    else:
        least = check_errors(weight, *read_back(weight, Int4(32, "minmax"))).reshape(3, 2, 32)
        assert (np.square(difference.reshape(3, 2, 32)).sum(2) <= np.square(least).sum(2) * (1 + 1e-12)).all()


@settings(max_examples=40, deadline=None)
@given(some_weights(3, 64), st.sampled_from([None, 32]))
def test_int8_takes_the_nearest_code_of_each_weight(weight: NDArray[Any], group: int | None) -> None:
    values, errors = read_back(weight, Int8(group))
    difference = np.abs(check_errors(weight, values, errors))
    each = np.repeat(round_weight(weight, Int8(group))[0]["weight_scale"].astype(np.float64), group or 64, axis=1)
    grid = np.abs(weight.astype(np.float64)[..., None] - np.arange(-128, 128) * each[..., None])
    assert (difference == grid.min(axis=2)).all() and (difference <= each / 2).all()


def test_the_search_pays() -> None:
    weight = weights(64, 1024, "bf16")[5:]
    found = [round_weight(weight, Int4(128, observer))[1].relative for observer in ("mse", "minmax")]
    assert found[0] < 0.97 * found[1]


@pytest.mark.parametrize("form", [Fp8(), Int4(32), Int8()], ids=["fp8", "int4", "int8"])
def test_strips_and_threads_change_nothing(form: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = weights(300, 96, "bf16")
    whole, errors = round_weight(weight, form, threads=1)
    monkeypatch.setattr(rounding, "STRIP", 1)
    strips, again = round_weight(weight, form, threads=4)
    assert {end: array.tobytes() for end, array in whole.items()} == {end: array.tobytes() for end, array in strips.items()}
    assert again.errors == pytest.approx(errors.errors, rel=1e-12) and again.largest_error == errors.largest_error


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1.5e38])
def test_what_is_no_weight_is_refused_with_row_and_column(value: float) -> None:
    weight = weights(300, 96, "bf16")
    weight[257, 3] = value
    for form in (Fp8(), Int4(32), Int8()):
        with pytest.raises(NoWeight, match=rf"^holds {float(weight[257, 3]):g} at \[257, 3\]$".replace("+", r"\+")):
            round_weight(weight, form)
