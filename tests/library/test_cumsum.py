"""`cumsum`, `bincount` and `histogram` are PyTorch's; sums in both directions, rows in parts, gradients, what does not
count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.library.interpreted import Array, interpreted, tensor
from tests.library.prebuilt import SOURCE, is_prebuilt
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.kernels import scans


def _integers(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Any:
    """Small integers, whose sums are exact."""
    return tensor(np.random.default_rng(seed).integers(-2, 3, shape), dtype)


def _sums(x: Any, reverse: bool) -> Any:
    wide = x.astype(np.float64).view(np.ndarray)
    return np.flip(np.cumsum(np.flip(wide, -1), axis=-1), -1) if reverse else np.cumsum(wide, axis=-1)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 20), st.sampled_from([1, 7, 64, 127, 128, 129, 1000, 2048, 2051]), st.booleans(),
    st.sampled_from(["float32", "float16"]), st.integers(0, 99),
)  # fmt: skip
def test_sums_and_their_gradient(count: int, length: int, reverse: bool, dtype: str, seed: int) -> None:
    x, dout = (_integers(count, length, dtype=dtype, seed=seed + i) for i in range(2))
    with interpreted() as library:
        out = library.module.cumsum(x, reverse)
        dx, rest = library.gradient("cumsum", (x, int(reverse)), out, dout)
        assert all(is_prebuilt(call.kernel, call.constants) for call in library.calls)
    np.testing.assert_array_equal(out, _sums(x, reverse))
    np.testing.assert_array_equal(dx, _sums(dout, not reverse))
    assert out.dtype == x.dtype and rest is None


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [scans.PART + 1, 3 * scans.PART])
def test_long_rows_are_computed_in_parts(length: int, reverse: bool) -> None:
    x, dout = (_integers(2, length, seed=seed) for seed in range(2))
    with interpreted() as library:
        out = library.module.cumsum(x.reshape(2, 1, length), reverse)
        assert [call.kernel for call in library.calls] == ["part_sums", "cumsum_parts"]
        sums = library.ops["part_sums"](x)
        dx, *rest = library.gradient("cumsum_parts", (x, sums, int(reverse)), out, dout)
        assert all(is_prebuilt(call.kernel, call.constants) for call in library.calls)
    np.testing.assert_array_equal(out[:, 0], _sums(x, reverse))
    np.testing.assert_array_equal(dx, _sums(dout, not reverse))
    assert rest == [None, None]


def test_more_parts_than_are_read_at_a_time() -> None:
    """With parts of 8 elements, since so many long ones take too long here."""
    parts = 515
    constants = {"E": "f32", "REVERSE": 0, "TILES": 1, "PARTS": 512, "BLOCK": 8, "MULTIPLE": 8}
    x, out = _integers(1, parts * 8), tensor(np.zeros((1, parts * 8)), np.float32)
    sums = x.reshape(1, parts, 8).sum(axis=2)
    run(load_kernel(SOURCE / "cumsum_parts.py", constants, root=SOURCE), {"x": x, "sums": sums, "out": out}, {"reverse": 0})
    np.testing.assert_array_equal(out, _sums(x, False))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 9000), st.integers(1, 300), st.sampled_from(["int32", "int64"]), st.integers(0, 99))
def test_numbers_are_counted(count: int, bins: int, dtype: str, seed: int) -> None:
    x = tensor(np.random.default_rng(seed).integers(-2, bins + 2, count), dtype)
    if dtype == "int64" and count:
        x[0] = 2**32
    with interpreted() as library:
        found = library.module.bincount(x, bins)
        assert all(is_prebuilt(call.kernel, call.constants) for call in library.calls)
    np.testing.assert_array_equal(found, np.bincount(x[(x >= 0) & (x < bins)], minlength=bins))
    assert found.dtype == np.int32


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 5000), st.sampled_from([1, 8, 128, 1024]), st.sampled_from(["float32", "float16"]), st.integers(0, 99))
def test_elements_are_counted(count: int, bins: int, dtype: str, seed: int) -> None:
    """Of multiples of an eighth, in bins of an eighth, so that places are exact."""
    x = tensor(np.random.default_rng(seed).integers(-70, 70, count) / 8, dtype)
    x[:3] = np.array([np.nan, np.inf, -np.inf])[: len(x[:3])]
    low, high = -bins / 16, bins / 16
    with interpreted() as library, np.errstate(invalid="ignore"):
        found = library.module.histogram(x, bins, low, high)
        assert all(is_prebuilt(call.kernel, call.constants) for call in library.calls)
    finite = x[np.isfinite(x)].astype(np.float64).view(np.ndarray)
    np.testing.assert_array_equal(found, np.histogram(finite, bins, (low, high))[0])


@pytest.mark.parametrize(("bins", "most"), [(256, scans.FEW), (257, scans.SEVERAL), (4097, scans.LONGEST)])
def test_many_numbers_are_counted(bins: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the kernels for long rows, and several counts of a bin become one."""
    x = tensor(np.random.default_rng(0).integers(0, bins, 5003), np.int32)
    with interpreted() as library:
        monkeypatch.setattr("tilec.kernels.scans.MANY", 1)
        found, binned = library.module.bincount(x, bins), library.module.histogram(x.float(), bins, 0.0, float(bins))
        counting = [call for call in library.calls if "FEW" in call.constants]
        assert all(is_prebuilt(call.kernel, call.constants) for call in library.calls)
    assert [call.constants["FEW"] for call in counting] == [most, most]
    np.testing.assert_array_equal(found, np.bincount(x, minlength=bins))
    np.testing.assert_array_equal(binned, found)


def test_wrong_arguments() -> None:
    x = _integers(3, 4)
    with interpreted() as library:
        module = library.module
        with pytest.raises(ValueError, match="cumsum: `x` has no axes"):
            module.cumsum(x[0, 0].reshape(()))
        longer = np.broadcast_to(x[:1, :1], (1, scans.LONGEST + 1)).view(Array)
        with pytest.raises(ValueError, match=f"cumsum: the last axis of `x` has {scans.LONGEST + 1} elements"):
            module.cumsum(longer)
        with pytest.raises(ValueError, match="bincount: `bins` is 0; at least 1 is needed"):
            module.bincount(x.int(), 0)
        with pytest.raises(ValueError, match=f"histogram: `x` has {scans.LONGEST + 1} elements; at most {scans.LONGEST}"):
            module.histogram(longer, 4, 0.0, 1.0)
        with pytest.raises(ValueError, match=r"histogram: `low` is 1\.0 and `high` 1\.0; `high` is above `low`"):
            module.histogram(x, 4, 1.0, 1.0)
