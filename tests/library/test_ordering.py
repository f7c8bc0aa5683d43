"""`sort`, `argsort` and `topk` are PyTorch's, with long rows, equal elements, NaN and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.library.interpreted import Array, interpreted, tensor
from tests.library.prebuilt import is_prebuilt
from tilec.kernels import ordering
from tilec.kernels.source import reference_ordering as reference


def _random(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Any:
    """Numbers of which some are equal."""
    return tensor(np.random.default_rng(seed).integers(-40, 40, shape) / 8, dtype)


def _order(x: Any, descending: bool) -> Any:
    """The positions of a stable sort, with NaN above all numbers."""
    wide = np.where(np.isnan(x), np.inf, x.astype(np.float64)).view(np.ndarray)
    is_nan = np.isnan(x).view(np.ndarray)
    if descending:
        return np.lexsort((-wide, ~is_nan), axis=-1)
    return np.lexsort((wide, is_nan), axis=-1)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 40), (9, 129), (1, 4096), (2, 4097), (1, 9001)])
def test_rows_of_any_length_are_sorted_stably(shape: tuple[int, ...], descending: bool) -> None:
    x = _random(*shape)
    x[..., 5:30:4] = np.nan
    x[..., 3], x[..., 7] = np.inf, -np.inf
    expected = _order(x, descending)
    with interpreted() as library:
        values, positions = library.module.sort(x, descending)
        found = library.module.argsort(x, descending)
        assert all(is_prebuilt(call.kernel, call.constants) for call in library.calls)
    np.testing.assert_array_equal(positions, expected)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(x, expected, axis=-1))
    assert (values.dtype, positions.dtype) == (x.dtype, np.int32)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 9), st.integers(1, 300), st.booleans(), st.sampled_from(["float32", "float16"]), st.integers(0, 99),
)  # fmt: skip
def test_sort_is_stable(count: int, length: int, descending: bool, dtype: str, seed: int) -> None:
    x = _random(count, length, dtype=dtype, seed=seed)
    with interpreted() as library:
        values, positions = library.module.sort(x, descending)
        assert all(is_prebuilt(call.kernel, call.constants) for call in library.calls)
    expected = _order(x, descending)
    np.testing.assert_array_equal(positions, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(x, expected, axis=-1))


def test_runs_of_several_lengths_are_merged() -> None:
    """Four merges of runs, of which the last is short or alone, at every step."""
    x = _random(1, 8 * ordering.SORTED[-1] + 77)
    with interpreted() as library:
        _, positions = library.module.sort(x)
        runs = [call.kernel for call in library.calls]
    assert runs == ["sort_tiles", *["merge_shares", "merge_runs"] * 4, "take_columns"]
    np.testing.assert_array_equal(positions, _order(x, False))


@pytest.mark.parametrize(
    ("shape", "k"), [((2, 3, 40), 40), ((9, 129), 1), ((3, 2048), 300), ((2, 2049), 60), ((1, 9001), 5), ((1, 9001), 700)]
)
def test_the_largest_are_found(shape: tuple[int, ...], k: int) -> None:
    x = _random(*shape)
    x[..., 5], x[..., 7], x[..., 9] = np.nan, np.inf, -np.inf
    expected = _order(x, True)[..., :k]
    with interpreted() as library:
        values, positions = library.module.topk(x, k)
        assert all(is_prebuilt(call.kernel, call.constants) for call in library.calls)
    np.testing.assert_array_equal(positions, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(x, expected, axis=-1))


def test_parts_of_rows_that_end_within_one() -> None:
    """Rows are divided into parts, of which the last is short, and all that is found is -inf."""
    x = tensor(np.full((1, 3 * 2 * 2048 + 5), -np.inf), np.float32)
    x[0, 2 * 2048 + 9] = 1
    with interpreted() as library:
        values, positions = library.module.topk(x, 40)
        parts = [call.kernel for call in library.calls]
    assert parts == ["topk_long", "topk", "take_columns"]
    assert positions[0].tolist() == [2 * 2048 + 9, *range(39)] and values[0, 0] == 1


@settings(max_examples=12, deadline=None)
@given(
    st.integers(2049, 40000), st.integers(1, ordering.MOST[0]), st.sampled_from([1, 3, 200, 2048]), st.booleans(),
    st.sampled_from(["float32", "float16"]), st.integers(0, 99),
)  # fmt: skip
def test_groups_that_share_the_largest(length: int, k: int, period: int, fills: bool, dtype: str, seed: int) -> None:
    """Few different numbers, of which equal ones are in the same groups or all in different ones, and NaN."""
    rng = np.random.default_rng(seed)
    x = tensor(np.resize(rng.integers(-3, 4, (1, period)), (1, length)), dtype)
    x[0, rng.integers(0, length, 9)] = np.array([np.nan, np.inf, -np.inf, 5, 5, 5, 0.0, -0.0, 6])
    expected = _order(x, True)[:, :k]
    with interpreted() as library, pytest.MonkeyPatch.context() as patch:
        patch.setattr("tilec.kernels.ordering.BLOCKS", 2 if fills else 264)
        values, positions = library.module.topk(x, k)
        found = [call for call in library.calls if call.kernel == "topk_long"]
        assert all(is_prebuilt(call.kernel, call.constants) for call in library.calls)
    assert found[0].constants["TILES"] == (ordering.TILES[0] if length <= 8192 or not fills else ordering.TILES[-1])
    np.testing.assert_array_equal(values, np.take_along_axis(x, expected, axis=-1))
    zeros = np.take_along_axis(x, expected, axis=-1) == 0
    np.testing.assert_array_equal(positions[~zeros], expected[~zeros])


def test_the_largest_of_many_parts_are_found_in_parts() -> None:
    x = _random(1, 33 * 8192 + 3)
    with interpreted() as library:
        _, positions = library.module.topk(x, 64)
        kernels = [call.kernel for call in library.calls]
    assert kernels == ["topk_long", "topk_long", "take_columns"]
    np.testing.assert_array_equal(positions, _order(x, True)[:, :64])


def test_more_than_are_kept_are_sorted() -> None:
    x = _random(1, 5000)
    k = ordering.MOST[-1] + 1
    with interpreted() as library:
        values, positions = library.module.topk(x, k)
        assert "topk" not in {call.kernel for call in library.calls}
    np.testing.assert_array_equal(positions, _order(x, True)[:, :k])
    assert values.shape == (1, k)


def test_gradients_go_back_to_where_elements_were() -> None:
    x = _random(3, 50)
    with interpreted() as library:
        output = library.ops["sort"](x, 1)
        dout = _random(3, 50, seed=1)
        dx, rest = library.gradient("sort", (x, 1), output, dout, None)
        expected = np.zeros((3, 50))
        np.put_along_axis(expected, _order(x, True), dout.astype(np.float64), axis=1)
        np.testing.assert_array_equal(dx, expected)
        assert rest is None
        output = library.ops["topk"](x, 1, 7)
        dx, *others = library.gradient("topk", (x, 1, 7), output, dout[:, None, :7], None)
        expected = np.zeros((3, 50))
        np.put_along_axis(expected, _order(x, True)[:, :7], dout[:, :7].astype(np.float64), axis=1)
        np.testing.assert_array_equal(dx, expected)
        assert others == [None, None]
        columns = tensor([[4, 2], [0, 49], [9, 8]], np.int32)
        rows, of_parts = _random(2, 2 * 8192 + 5), _random(2, 3, 7, seed=1)
        output = library.ops["topk_long"](rows, 3, 7)
        dx, *others = library.gradient("topk_long", (rows, 3, 7), output, of_parts, None)
        expected = np.zeros(rows.shape)
        for row, part in np.ndindex(2, 3):
            inside = output[1][row, part] < rows.shape[1]
            expected[row, output[1][row, part][inside]] = of_parts[row, part][inside]
        np.testing.assert_array_equal(dx, expected)
        assert others == [None, None]
        output = library.ops["take_columns"](x, columns)
        dx, rest = library.gradient("take_columns", (x, columns), output, dout[:, :2])
        expected = np.zeros((3, 50))
        np.put_along_axis(expected, columns, dout[:, :2].astype(np.float64), axis=1)
        np.testing.assert_array_equal(dx, expected)
        assert rest is None


def test_nothing_and_wrong_arguments() -> None:
    x = _random(3, 40)
    with interpreted() as library:
        assert [one.shape for one in library.module.sort(x[:0])] == [(0, 40)] * 2
        assert library.module.argsort(x[:, :0]).shape == (3, 0)
        assert [one.shape for one in library.module.topk(x[:0], 3)] == [(0, 3)] * 2
        with pytest.raises(ValueError, match="topk: `k` is 41; it is from 1 to the 40 elements of the last axis of `x`"):
            library.module.topk(x, 41)
        with pytest.raises(ValueError, match="topk: `k` is 0"):
            library.module.topk(x, 0)
        with pytest.raises(ValueError, match="sort: `x` has no axes"):
            library.module.sort(x[0, 0].reshape(()))
        longer = np.broadcast_to(x[:1, :1], (1, ordering.LONGEST + 1)).view(Array)
        with pytest.raises(ValueError, match=f"argsort: the last axis of `x` has {ordering.LONGEST + 1} elements"):
            library.module.argsort(longer)


def test_the_reference_of_merged_runs_is_a_sort() -> None:
    keys = np.random.default_rng(0).integers(-5, 5, (2, 23)).astype(np.int32)
    sorted_keys, order = reference.merge_runs(keys, np.arange(23)[None, :].repeat(2, axis=0), keys[:, :1], 16)
    np.testing.assert_array_equal(sorted_keys, np.sort(keys, axis=1))
    np.testing.assert_array_equal(order, np.argsort(keys, axis=1, kind="stable"))
