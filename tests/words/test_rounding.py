"""`round`, `clamp`, `isnan`, `isinf`, `isfinite`: ties, both zeros, infinities and NaN, on every architecture."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.words.kernels import ARCHITECTURES, One, refusal
from tilec.interpreter.dtypes import numpy_dtype
from tilec.interpreter.error_rules import UNARY
from tilec.ir.types import DTYPES

FLOATS = ("f32", "f16", "bf16")
EDGES = [0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 3.5, 126.5, 127.5, 1e4, 3e38, 1e-40, np.inf, np.nan, 2.0**23 - 0.5]


def edges(dtype: str) -> Any:
    """32 numbers of a dtype."""
    with np.errstate(over="ignore"):
        return np.array([*EDGES, *(-edge for edge in EDGES)]).astype(numpy_dtype(DTYPES[dtype]))


def one(expression: str, dtype: str, result: str = "") -> One:
    return One(expression, result or dtype, (32,), ((dtype, (32,)),))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("word", ["tl.round", "round"])
def test_ties_go_to_the_even_integer_and_zero_keeps_its_sign(word: str, dtype: str) -> None:
    x = edges(dtype)
    found = one(f"{word}(a)", dtype).agreed(x).astype(np.float64)
    expected = np.array([v if not np.isfinite(v) else np.copysign(float(round(float(v))), v) for v in x.astype(np.float64)])
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found)[expected == 0], np.signbit(expected)[expected == 0])


@pytest.mark.parametrize("target", ARCHITECTURES, ids=str)
def test_one_instruction_rounds(target: Any) -> None:
    text, _ = one("round(a)", "f32").ptx(target)
    assert text.count("cvt.rni.f32.f32") > 0 and "cvt.rmi" not in text


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("word", ["isnan", "isinf", "isfinite"])
def test_kinds_of_floats(word: str, dtype: str) -> None:
    x = edges(dtype)
    found = one(f"tl.{word}(a).astype(tl.i32)", dtype, "i32").agreed(x)
    np.testing.assert_array_equal(found != 0, getattr(np, word)(x.astype(np.float32)))


def test_clamp_is_between_its_ends_and_a_nan_gives_the_lower() -> None:
    x = edges("f32")
    expected = np.where(np.isnan(x), np.float32(-1), np.clip(x, -1, np.float32(2.5)))
    np.testing.assert_array_equal(one("tl.clamp(a, -1.0, 2.5)", "f32").agreed(x), expected)
    numbers = np.arange(-16, 16, dtype=np.int32)
    found = One("tl.clamp(a, -b, b)", "i32", (32,), (("i32", (32,)), ("i32", (32,)))).agreed(numbers, abs(numbers) // 2)
    np.testing.assert_array_equal(found, np.clip(numbers, -(abs(numbers) // 2), abs(numbers) // 2))


def test_constants() -> None:
    expression = "a * 0 + (tl.round(2.5) + round(3.5) * 10 + tl.clamp(7, 0, 5) * 100) + tl.where(tl.isnan(tl.nan), a, 0)"
    assert (one(expression, "f32").interpreted(np.ones(32, np.float32)) == 2 + 40 + 500 + 1).all()


@settings(max_examples=200, deadline=None)
@given(x=st.floats(-100, 100), error=st.floats(0, 5), at=st.floats(-1, 1))
def test_the_error_of_a_rounded_number_is_at_most_its_bound(x: float, error: float, at: float) -> None:
    bound = float(UNARY["round"](np.float64(x), np.float64(error), np.rint(x)))  # pyright: ignore[reportArgumentType]
    assert abs(np.rint(x + at * error) - np.rint(x)) <= bound <= 2 * 1.01 * error + 1


def test_a_number_far_from_a_tie_has_no_error() -> None:
    x, e = np.array([1.2, 1.49, np.inf, np.nan]), np.array([0.2, 0.02, 0.0, 0.0])
    assert UNARY["round"](x, e, np.rint(x)).tolist() == [0.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("expression", "message"),
    [("tl.round(a)", "E0204: `round` takes floats, not i32; convert with `.astype(f32)`"),
     ("tl.isnan(a)", "E0204: `isnan` takes floats, not i32; every integer and bool is a finite number"),
     ("tl.clamp(a, 0.5, 2)", "E0204: the float 0.5 cannot be used as i32; convert the tile with `.astype(f32)` first"),
     ("tl.round(tl.nan) + a", "E0205: `round(nan)` has no value: cannot convert float NaN to integer")],
)  # fmt: skip
def test_refusals(expression: str, message: str) -> None:
    assert refusal(one(expression, "i32").text).removesuffix("; ") == message
