"""`embedding` and `embedding_bag` are PyTorch's, with numbers that no row has, empty bags, and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.library.interpreted import Array, interpreted, tensor
from tests.library.prebuilt import is_prebuilt, slope
from tilec.kernels import tables
from tilec.kernels.source import reference_tables as reference


def _table(rows: int, width: int, dtype: Any = np.float32, seed: int = 0) -> Any:
    """Small integers, whose sums are exact."""
    return tensor(np.random.default_rng(seed).integers(-3, 4, (rows, width)), dtype)


def _ids(count: int, rows: int, dtype: Any = np.int64, seed: int = 0) -> Any:
    """Some are those of no row."""
    found = tensor(np.random.default_rng(seed).integers(-1, rows + 1, count), dtype)
    if dtype == np.int64 and count > 3:
        found[1], found[2] = 2**31 - 1, 2**32
    return found


def _scattered(dout: Any, ids: Any, rows: int) -> Any:
    """The gradient of a table of which a row was taken for each row of `dout`."""
    expected = np.zeros((rows, dout.shape[1]))
    inside = (ids >= 0) & (ids < rows)
    np.add.at(expected, ids[inside].view(np.ndarray), dout[inside].astype(np.float64).view(np.ndarray))
    return expected


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 300), st.integers(1, 40), st.sampled_from([1, 8, 24, 515]), st.sampled_from(["float32", "float16"]),
    st.sampled_from([np.int32, np.int64]), st.integers(0, 99),
)  # fmt: skip
def test_rows_and_their_gradient(count: int, rows: int, width: int, dtype: str, numbers: Any, seed: int) -> None:
    table, ids, dout = _table(rows, width, dtype), _ids(count, rows, numbers, seed), _table(count, width, dtype, seed=seed)
    with interpreted() as library:
        out = library.module.embedding(ids.reshape(1, count), table)
        nothing, dtable = library.gradient("take_rows", (ids, table), out[0], dout)
        assert all(is_prebuilt(call.kernel, call.constants) for call in library.calls)
    np.testing.assert_array_equal(out[0], reference.take_rows(ids, table))
    np.testing.assert_array_equal(dtable, _scattered(dout, ids, rows))
    assert nothing is None and (out.dtype, dtable.dtype) == (table.dtype, table.dtype)


def test_the_gradient_of_more_rows_than_a_tile_sorts() -> None:
    count = 4096 * 2 + 5
    table, ids, dout = _table(9, 8), _ids(count, 9), _table(count, 8, seed=1)
    with interpreted() as library:
        _, dtable = library.gradient("take_rows", (ids, table), library.ops["take_rows"](ids, table), dout)
        assert "merge_runs" in {call.kernel for call in library.calls}
    np.testing.assert_array_equal(dtable, _scattered(dout, ids, 9))


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 60), st.integers(1, 20), st.sampled_from([8, 515]), st.sampled_from(["mean", "sum"]),
    st.sampled_from([np.int32, np.int64]), st.integers(0, 99),
)  # fmt: skip
def test_bags_and_their_gradient(count: int, bags: int, width: int, mode: str, numbers: Any, seed: int) -> None:
    table, ids, dout = _table(11, width), _ids(count, 11, numbers, seed), _table(bags, width, seed=seed)
    offsets = tensor(np.sort(np.random.default_rng(seed).integers(0, count + 1, bags)), numbers)
    with interpreted() as library:
        out = library.module.embedding_bag(ids, table, offsets, mode)
        scales = library.ops["bag_scales"](offsets.int(), count, int(mode == "mean"))
        inputs = (ids, offsets.int(), scales, table)
        *others, dtable = library.gradient("embedding_bag", inputs, out, dout)
        assert all(is_prebuilt(call.kernel, call.constants) for call in library.calls)
    lengths = np.diff(np.append(offsets, count))
    factors = 1 / np.maximum(lengths, 1) if mode == "mean" else np.ones(bags)
    rows = reference.take_rows(ids, table)
    expected = np.stack([rows[begin : begin + length].sum(axis=0) for begin, length in zip(offsets, lengths, strict=True)])
    np.testing.assert_allclose(out, expected * factors[:, None], rtol=1e-6)
    first = int(offsets[0])
    each = np.repeat(dout.astype(np.float64) * factors[:, None], lengths, axis=0)
    np.testing.assert_allclose(dtable, _scattered(each, ids[first:], 11), rtol=1e-5, atol=1e-5)
    assert others == [None] * 3


def test_bags_of_one_length() -> None:
    table, ids = _table(11, 16), _ids(12, 11).reshape(4, 3)
    with interpreted() as library:
        mean, total = (library.module.embedding_bag(ids, table, mode=mode) for mode in tables.MODES)
    rows = reference.take_rows(ids.reshape(-1), table).reshape(4, 3, 16)
    np.testing.assert_allclose(mean, rows.mean(axis=1), rtol=1e-6)
    np.testing.assert_array_equal(total, rows.sum(axis=1))


def test_references_of_gradients_are_slopes() -> None:
    random = np.random.default_rng(5)
    table, direction, dout = (random.normal(size=(7, 4)) for _ in range(3))
    ids, offsets, scales = random.integers(0, 7, 20), np.sort(random.integers(0, 20, 7)), random.normal(size=7)
    order = np.argsort(ids, kind="stable")
    bags = np.searchsorted(offsets, np.arange(20), side="right") - 1
    starts = np.searchsorted(ids[order], np.arange(8))
    gradient = reference.table_gradient(dout, scales, bags[order], starts)
    found = slope(lambda at: (reference.embedding_bag(ids, offsets, scales, at) * dout).sum(), table, direction)
    np.testing.assert_allclose((gradient * direction).sum(), found, rtol=1e-9)


def test_nothing_and_wrong_arguments() -> None:
    table, ids = _table(5, 8), _ids(6, 5)
    with interpreted() as library:
        module = library.module
        assert module.embedding(ids[:0].reshape(0, 3), table).shape == (0, 3, 8)
        assert module.embedding_bag(ids[:0], table, ids[:2]).tolist() == [[0] * 8] * 2
        assert module.embedding_bag(ids, table, ids[:0]).shape == (0, 8)
        with pytest.raises(ValueError, match=r"embedding: `table` has 1 axes; it is `\[V, H\]`"):
            module.embedding(ids, table[0])
        with pytest.raises(ValueError, match="embedding_bag: `mode` is 'max'; it is one of 'mean', 'sum'"):
            module.embedding_bag(ids, table, ids[:2], "max")
        with pytest.raises(ValueError, match="embedding_bag: `ids` has 1 axes"):
            module.embedding_bag(ids, table)
        with pytest.raises(ValueError, match=r"embedding_bag: `offsets` has the shape \[2, 3\]"):
            module.embedding_bag(ids, table, ids.reshape(2, 3))
        longer = np.broadcast_to(ids[:1], (tables.MOST + 1,)).view(Array)
        with pytest.raises(ValueError, match=f"embedding: `ids` has {tables.MOST + 1} numbers; at most {tables.MOST}"):
            module.embedding(longer, table)
