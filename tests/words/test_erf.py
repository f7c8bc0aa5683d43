"""`erf`: the error of the lowered polynomials over a dense set of f32, as the emulator computes them and as a chip may.

The truth is `math.erf` in f64. NumPy repeats the steps of `tilec/atoms/error_function.py`; the emulator executes the PTX of
every architecture and gives the same bits, so the dense set needs NumPy only.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests import campaign
from tests.words.kernels import ARCHITECTURES, One, refusal
from tilec.atoms.error_function import NEAR, ONE, TAIL
from tilec.interpreter.dtypes import numpy_dtype
from tilec.ir.types import DTYPES

Array = NDArray[Any]
ALLOWED = 2.0
"""Units in the last place, as the word's docstring promises."""
MEASURED = 1.77
"""The figure there: the largest error, with an `ex2` that is as wrong as the PTX ISA allows; 1.16 with an exact one."""
EX2_ERROR = 2.0**-22
"""At least the relative error that the PTX ISA states for `ex2.approx.ftz.f32`, of every architecture."""
BIT_STEP = 1009
"""Every float from 2^-3 to 8 whose bits differ by multiples of it is in the dense set, about 50 000."""


PART = 1 << 19
"""Floats of one case of the campaign."""


def dense() -> Array:
    """Floats of both parts, of all binades, and around where the parts meet."""
    main = np.arange(0x3E000000, 0x41000000, BIT_STEP, dtype=np.uint32).view(np.float32)
    one = (np.arange(-4000, 4000) + 0x3F800000).astype(np.uint32).view(np.float32)
    binades = np.arange(0, 0x7F800000, 1 << 18, dtype=np.uint32).view(np.float32)
    positive = np.concatenate([main, one, binades, np.array([2.0**-149, 2.0**-126, 3.4028235e38, np.inf], np.float32)])
    return np.concatenate([positive, -positive])


def fma(a: Array, b: Array, c: Array) -> Array:
    """In f64, where a product of f32 is exact and a sum nearly so."""
    return (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(np.float32)


def polynomial(bits: tuple[int, ...], x: Array) -> Array:
    numbers = np.array(bits, np.uint32).view(np.float32)
    result = np.full_like(x, numbers[-1])
    for number in numbers[-2::-1]:
        result = fma(result, x, np.full_like(x, number))
    return result


def by_steps(x: Array, ex2_error: float = 0.0, near: tuple[int, ...] = NEAR, tail: tuple[int, ...] = TAIL) -> Array:
    """The lowered code in NumPy, with an `ex2` of that relative error."""
    with np.errstate(all="ignore"):
        small = fma(x, polynomial(near, x * x), x)
        exponent = polynomial(tail, np.fmin(np.abs(x), np.float32(4)))
        rest = (np.exp2(exponent.astype(np.float64)) * (1 + ex2_error)).astype(np.float32)
        return np.where(np.abs(x) > 1, np.copysign(np.float32(1) - rest, x), small)


def truth(x: Array) -> Array:
    return np.array([math.erf(value) for value in x.astype(np.float64).tolist()])


def units(found: Array, x: Array) -> float:
    """The largest error in units in the last place of the exact result's f32."""
    exact = truth(x)
    spacing = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    return float((np.abs(found.astype(np.float64) - exact) / spacing).max())


def test_the_error_over_a_dense_set() -> None:
    x = dense()
    errors = [units(by_steps(x, error), x) for error in (0.0, EX2_ERROR, -EX2_ERROR)]
    assert MEASURED - 0.1 < max(errors) <= MEASURED < ALLOWED, errors
    assert (np.abs(by_steps(x, -EX2_ERROR)) <= 1).all()


@pytest.mark.parametrize("first", campaign.first(1, sorted(range(0x3D000000, 0x40900000, PART), key=lambda n: n != ONE)))
def test_the_error_of_every_float(first: int) -> None:
    """All f32 from 2^-5 to 4.5; below, erf is as good as linear, and above it is 1. The default run has those from 1 on, where
    the error is largest."""
    x = np.arange(first, first + PART, dtype=np.uint32).view(np.float32)
    assert max(units(by_steps(x, error), x) for error in (0.0, EX2_ERROR, -EX2_ERROR)) <= MEASURED


@pytest.mark.parametrize(("near", "tail"), [((NEAR[0] ^ 8, *NEAR[1:]), TAIL), (NEAR, (TAIL[0], TAIL[1] + 8, *TAIL[2:]))])
def test_a_wrong_coefficient_exceeds_the_bound(near: tuple[int, ...], tail: tuple[int, ...]) -> None:
    x = dense()
    assert units(by_steps(x, 0.0, near, tail), x) > ALLOWED


def test_the_emulator_executes_these_steps() -> None:
    """On every architecture, for a part of the dense set and special numbers; the interpreter is within the same bound."""
    special = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, -1.0, 2.0**-149, -(2.0**-149), 4.0], np.float32)
    x = np.concatenate([special, dense()[:: dense().size // 1100]])[:1024].reshape(8, 128)
    one = One("tl.erf(a)", "f32", (8, 128), (("f32", (8, 128)),))
    expected, interpreted = by_steps(x), one.interpreted(x)
    for target in ARCHITECTURES:
        found = one.emulated(target, x)
        assert (np.isnan(found) == np.isnan(x)).all()
        # an exact `ex2` may be rounded in two ways where it lies between two floats
        np.testing.assert_array_max_ulp(found[~np.isnan(x)], expected[~np.isnan(x)], 1)
        assert (np.signbit(found) == np.signbit(x))[~np.isnan(x)].all()
        assert units(found[~np.isnan(x)], x[~np.isnan(x)]) <= ALLOWED
    assert units(interpreted[~np.isnan(x)], x[~np.isnan(x)]) <= 0.5001


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_narrower_floats_are_rounded_once_more(dtype: str) -> None:
    """All 65536 numbers, in NumPy's steps; 512 of them in the emulator."""
    numpy_type = numpy_dtype(DTYPES[dtype])
    every = np.arange(65536, dtype=np.uint16).view(numpy_type)
    finite = every[np.isfinite(every.astype(np.float32))]
    with np.errstate(all="ignore"):
        wide = finite.astype(np.float32)
        steps, exact = by_steps(wide).astype(numpy_type), truth(wide).astype(np.float32).astype(numpy_type)
    distance = np.abs(steps.view(np.int16).astype(int) - exact.view(np.int16).astype(int))
    assert distance.max() <= 1  # where the exact result is next to the middle of two
    assert (distance > 0).mean() < 1e-3
    some = finite[:: finite.size // 512][:512]
    one = One("tl.erf(a)", dtype, (512,), ((dtype, (512,)),))
    found = one.emulated(ARCHITECTURES[0], some)
    expected = by_steps(some.astype(np.float32)).astype(numpy_type)
    assert (np.abs(found.view(np.int16).astype(int) - expected.view(np.int16).astype(int)) <= 1).all()
    assert (found == expected).mean() > 0.99


def test_a_constant_is_computed_by_the_compiler() -> None:
    x = np.zeros(32, np.float32)
    assert (One("a + tl.erf(0.5)", "f32", (32,), (("f32", (32,)),)).interpreted(x) == np.float32(math.erf(0.5))).all()


@pytest.mark.parametrize(
    ("expression", "message"),
    [("tl.erf(a)", "E0204: `erf` takes floats, not i32; convert with `.astype(f32)`"),
     ("tl.erf(a > 0)", "E0204: `erf` takes floats, not bool; convert with `.astype(f32)`")],
)  # fmt: skip
def test_refusals(expression: str, message: str) -> None:
    assert refusal(One(expression, "f32", (32,), (("i32", (32,)),)).text) == message
