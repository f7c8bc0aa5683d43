"""Products of 8-bit operands and of tf32 in the interpreter: integers exactly, modulo 2^32, floats as in float64 within the
interpreter's own bound, and rounding to tf32 to the nearest number, ties away from zero; what the tile IR refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilec.emulator.machine.rounding import round_to
from tilec.interpreter.arithmetic import mma, to_tf32
from tilec.interpreter.dtypes import numpy_dtype
from tilec.interpreter.error_rules import product
from tilec.ir.core import Value, VerifyError
from tilec.ir.ops import Mma, sum_dtype
from tilec.ir.types import DTYPES, DType, TileType, bf16, f8e4m3, f8e5m2, f16, f32, i8, i16, i32, u8

INTEGERS = (i8, u8)
FLOATS = (f8e4m3, f8e5m2)
EXTENTS = st.tuples(st.integers(1, 5), st.integers(1, 40), st.integers(1, 5))


def operation(a: DType, b: DType, sums: DType, extents: tuple[int, int, int] = (16, 32, 16)) -> Mma:
    m, k, n = extents
    op = Mma(operands=[Value(TileType(a, (m, k))), Value(TileType(b, (k, n))), Value(TileType(sums, (m, n)))])
    op.define(TileType(sums, (m, n)))
    return op


@given(st.sampled_from(INTEGERS), st.sampled_from(INTEGERS), EXTENTS, st.integers(0, 2**32 - 1), st.booleans())
def test_sums_of_integers_are_exact_and_wrap(a: DType, b: DType, extents: tuple[int, int, int], seed: int, high: bool) -> None:
    m, k, n = extents
    random = np.random.default_rng(seed)
    x, y = (random.integers(*one.integer_range(), shape, endpoint=True) for one, shape in ((a, (m, k)), (b, (k, n))))
    low, most = i32.integer_range()
    total = random.integers(most - 20000 if high else low, most, (m, n), endpoint=True)
    found = mma(
        operation(a, b, i32, extents), x.astype(numpy_dtype(a)), y.astype(numpy_dtype(b)), total.astype(np.int32)
    )  # fmt: skip
    exact: Any = x.astype(object) @ y.astype(object) + total.astype(object)
    assert found.dtype == np.int32
    assert [[int(v) for v in row] for row in found] == [[(int(v) + 2**31) % 2**32 - 2**31 for v in row] for row in exact]


@given(st.sampled_from([*FLOATS, f32]), st.sampled_from(FLOATS), EXTENTS, st.integers(0, 2**32 - 1))
def test_sums_of_floats_are_within_the_bound(a: DType, b: DType, extents: tuple[int, int, int], seed: int) -> None:
    b = f32 if a == f32 else b
    m, k, n = extents
    random: Any = np.random.default_rng(seed)
    x, y = (random.normal(size=shape).astype(numpy_dtype(one)) for one, shape in ((a, (m, k)), (b, (k, n))))
    total = random.normal(size=(m, n)).astype(np.float32)
    op = operation(a, b, f32, extents)
    wide = [one.astype(np.float64) for one in (x, y, total)]
    bound = product(op, *wide, *(np.zeros(one.shape) for one in wide))
    found: Any = mma(op, x, y, total)
    assert found.dtype == np.float32 and (np.abs(found - (wide[0] @ wide[1] + wide[2])) <= bound).all()


def test_a_product_of_f8_is_exact_if_its_sum_is() -> None:
    codes = np.arange(256, dtype=np.uint8)
    for one in FLOATS:
        values = codes.view(numpy_dtype(one))
        values = values[np.isfinite(values.astype(np.float32))]
        found = mma(operation(one, one, f32), values[:, None], values[None, :], np.zeros((1, 1), np.float32))
        assert (found == values.astype(np.float64)[:, None] * values.astype(np.float64)[None, :]).all()


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50))
def test_rounding_to_tf32_is_to_the_nearest_away_from_zero(bits: list[int]) -> None:
    x = np.array(bits, np.uint32).view(np.float32)
    found = to_tf32(x)
    for value, rounded in zip(x.tolist(), found, strict=True):
        if not np.isfinite(value):
            assert np.isnan(rounded) if np.isnan(value) else rounded == value
            continue
        # Both neighbours among the numbers whose lower 13 bits are zero; the one of the larger magnitude may be infinite.
        below = np.uint32(np.float32(value).view(np.uint32) & np.uint32(0xFFFFE000))
        inner, outer = float(below.view(np.float32)), float((below + np.uint32(0x2000)).view(np.float32))
        outer = outer if np.isfinite(outer) else float(np.copysign(2.0**128, value))
        nearest = outer if abs(outer) - abs(value) <= abs(value) - abs(inner) else inner
        expected = np.float32(nearest) if abs(nearest) < 2.0**128 else np.float32(np.copysign(np.inf, nearest))
        assert rounded == expected and np.signbit(rounded) == np.signbit(value)


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50))
def test_the_emulator_rounds_to_the_same_tf32(bits: list[int]) -> None:
    x = np.array(bits, np.uint32).view(np.float32)
    x = x[np.isfinite(x)]
    np.testing.assert_array_equal(to_tf32(x), emulated_tf32(x))


def emulated_tf32(x: Any) -> Any:
    """The emulator's `cvt.rna.tf32.f32`."""
    return np.asarray(round_to("tf32", x.astype(np.float64), "rna"), np.float32)


def test_which_dtypes_have_products() -> None:
    for a in DTYPES.values():
        for b in DTYPES.values():
            same_float = a == b and a in (bf16, f16, f32)
            expected = f32 if same_float or (a in FLOATS and b in FLOATS) else i32 if a in INTEGERS and b in INTEGERS else None
            assert sum_dtype(a, b) == expected, (a, b)


@pytest.mark.parametrize(
    ("a", "b", "sums"), [(i8, i8, f32), (f8e4m3, i8, f32), (bf16, f16, f32), (i16, i16, i32), (f8e4m3, f8e4m3, i32)], ids=str
)
def test_a_product_of_other_dtypes_is_refused(a: DType, b: DType, sums: DType) -> None:
    operation(i8, u8, i32).verify()
    operation(f8e4m3, f8e5m2, f32).verify()
    operation(f32, f32, f32).verify()
    with pytest.raises(VerifyError):
        operation(a, b, sums).verify()
