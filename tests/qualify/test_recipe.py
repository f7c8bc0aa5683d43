"""Contents of tensors: the same bytes everywhere, and always within the contract."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.audit import samples
from tilec.artifact.records import Manifest, TensorSpec, ValueCheck
from tilec.ir.expr import const
from tilec.qualify import recipe
from tilec.qualify.recipe import NoContents
from tilec.target.dtypes import DTYPES, numpy_dtype

FLOATS = [name for name, dtype in DTYPES.items() if dtype.is_float]


def one_tensor(dtype: str, count: int, check: ValueCheck | None = None) -> tuple[Manifest, TensorSpec]:
    """A manifest with one tensor of `count` elements."""
    spec = TensorSpec("x", "in", dtype, (const(count),), None, 16)
    manifest = samples.manifest("add")
    return replace(manifest, tensors=(spec,), value_checks=(check,) if check else ()), spec


@pytest.mark.parametrize("dtype", FLOATS)
def test_rounding_is_that_of_ml_dtypes(dtype: str) -> None:
    values = (np.arange(-510, 511).astype(np.float32) / recipe.SCALE).astype(np.float32)
    expected = values.astype(numpy_dtype(DTYPES[dtype]))
    found = recipe.stored(dtype, values)
    if dtype.startswith("f8"):  # nearest, but not to even: only its own values matter
        distance = np.abs(recipe.widened(dtype, found) - values)
        assert (distance <= np.abs(expected.astype(np.float64) - values)).all()
    else:
        assert (found.view(f"u{found.itemsize}") == expected.view(f"u{found.itemsize}")).all()


@pytest.mark.parametrize(("dtype", "like"), [("f8e4m3", ml_dtypes.float8_e4m3fn), ("f8e5m2", ml_dtypes.float8_e5m2)])
def test_all_values_of_8_bit_floats_are_those_of_ml_dtypes(dtype: str, like: type) -> None:
    codes = np.arange(256).astype(np.uint8)
    np.testing.assert_array_equal(recipe.widened(dtype, codes), codes.view(like).astype(np.float64))


def test_all_values_of_bf16_are_those_of_ml_dtypes() -> None:
    codes = np.arange(1 << 16).astype(np.uint16)
    np.testing.assert_array_equal(recipe.widened("bf16", codes), codes.view(ml_dtypes.bfloat16).astype(np.float64))


def test_the_bytes_are_the_same_everywhere() -> None:
    total = hashlib.sha256()
    for dtype in ("bf16", "f16", "f32", "f8e4m3", "i32", "u8", "bool"):
        manifest, spec = one_tensor(dtype, 5000)
        for kind in recipe.KINDS:
            total.update(recipe.contents(manifest, spec, {}, kind)[0].tobytes())
    assert total.hexdigest() == "2b7769f239f15f1f5ddc57ce32b2f425ee7d76593d29b23fd4e0e417f9e0772c"


def test_floats_are_nearly_normal_and_positive_where_asked() -> None:
    manifest, spec = one_tensor("f32", 100_000)
    normal = recipe.contents(manifest, spec, {}, "normal")[0]
    assert abs(float(normal.mean())) < 0.02
    assert 0.55 < float(normal.std()) < 0.6
    assert float(np.abs(normal).max()) < 2
    assert float(recipe.contents(manifest, spec, {}, "positive")[0].min()) >= 0.0625


def test_a_sum_of_products_is_exact_in_any_order() -> None:
    manifest, spec = one_tensor("bf16", 4096)
    values = recipe.widened("bf16", recipe.contents(manifest, spec, {}, "normal")[0]).astype(np.float32)
    products = values * values[::-1]
    exact = float(products.astype(np.float64).sum())
    assert abs(exact) < 256
    assert float(np.cumsum(products, dtype=np.float32)[-1]) == exact
    assert float(np.cumsum(products[::-1], dtype=np.float32)[-1]) == exact


def test_a_large_tensor_repeats_a_block() -> None:
    manifest, spec = one_tensor("bf16", 3 * recipe.PERIOD)
    block, form = recipe.contents(manifest, spec, {}, "normal")
    assert block.size == recipe.PERIOD
    assert form.count == 3 * recipe.PERIOD


@given(
    st.integers(-200, 200), st.integers(1, 300), st.integers(1, 200), st.booleans(), st.booleans(), st.booleans(),
    st.sampled_from(["i32", "i64", "i16", "u8", "i8", "u64"]), st.sampled_from([0, 2**63, 2**64]),
)  # fmt: skip
@example(0, 3, 3, True, False, True, "i32", 0)
@example(-100, 200, 200, True, False, True, "i16", 0)
@example(-100, 100, 100, True, False, True, "u64", 2**64)
def test_integers_satisfy_their_check(
    low: int, span: int, count: int, distinct: bool, ordered: bool, ends: bool, dtype: str, middle: int
) -> None:  # fmt: skip
    low += middle if dtype == "u64" else 0
    check = ValueCheck("x", const(low), const(low + span), distinct, ordered, ends)
    manifest, spec = one_tensor(dtype, count, check)
    try:
        found = recipe.contents(manifest, spec, {}, "normal")[0].astype(object)
    except NoContents:
        least, most = DTYPES[dtype].integer_range()
        room = min(most, low + span - 1) - max(least, low) + 1
        assert room < 1 or (distinct and room < count) or ends
        return
    assert ((found >= low) & (found < low + span)).all()
    assert not distinct or len(set(found)) == count
    assert not ordered or list(found) == sorted(found)
    if ends:
        least, most = DTYPES[dtype].integer_range()
        assert found[0] == max(low, least)
        assert found[-1] == min(low + span - 1, most)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 12), st.sampled_from(["i32", "u8"]))
@example(3, 8, 0, "i32")
@example(3, 3, 3, "u8")
def test_rows_hold_different_integers(tokens: int, row: int, more: int, dtype: str) -> None:
    check = ValueCheck("x", const(2), const(2 + row + more), False, distinct_in_rows=True)
    spec = TensorSpec("x", "in", dtype, (const(tokens), const(row)), None, 16)
    manifest = replace(samples.manifest("add"), tensors=(spec,), value_checks=(check,))
    rows = np.sort(recipe.contents(manifest, spec, {}, "normal")[0][: tokens * row].reshape(tokens, row), axis=1).astype(int)
    assert rows.min() >= 2 and rows.max() < 2 + row + more
    assert (np.diff(rows, axis=1) > 0).all()
    short = replace(check, high=const(2 + row - 1))
    with pytest.raises(NoContents):
        recipe.contents(replace(manifest, value_checks=(short,)), spec, {}, "normal")


def test_ends_and_the_middle_of_a_range_all_occur() -> None:
    manifest, spec = one_tensor("i32", 1000, ValueCheck("x", const(0), const(100), False))
    found = recipe.contents(manifest, spec, {}, "normal")[0]
    assert 250 < int((found == 0).sum()) < 420
    assert 250 < int((found == 99).sum()) < 420
    assert np.unique(found).size > 80


def test_sizes_that_no_tensor_has_are_refused() -> None:
    manifest, spec = one_tensor("i32", 0)
    with pytest.raises(NoContents):
        recipe.contents(manifest, spec, {}, "normal")
