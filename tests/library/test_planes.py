"""`max_pool2d`, `avg_pool2d` and `fft` are PyTorch's, with gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.library.emulated import check_emulated
from tests.library.interpreted import interpreted, tensor
from tests.library.prebuilt import is_prebuilt, slope, specialisations
from tilec.kernels import transforms
from tilec.kernels.source import reference_planes as reference


def _integers(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Any:
    """Small integers, of which many are equal, and whose sums are exact."""
    return tensor(np.random.default_rng(seed).integers(-4, 5, shape), dtype)


def _random(*shape: int, seed: int = 0) -> Any:
    return tensor(np.random.default_rng(seed).normal(size=shape), np.float32)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 40), st.integers(1, 40), st.integers(1, 5), st.integers(1, 6), st.integers(0, 2),
    st.sampled_from(["float32", "float16"]), st.integers(0, 99),
)  # fmt: skip
def test_pools_and_their_gradients(
    height: int, width: int, window: int, stride: int, padding: int, dtype: str, seed: int
) -> None:
    assume(padding <= window // 2 and min(height, width) + 2 * padding >= window)
    x = _integers(2, 3, height, width, dtype=dtype, seed=seed)
    planes, numbers = x.reshape(6, height, width), (window, stride, padding)
    bound = 1e-6 if dtype == "float32" else 2e-3
    with interpreted() as library:
        largest, mean = library.module.max_pool2d(x, *numbers), library.module.avg_pool2d(x, *numbers)
        dout = _integers(6, *largest.shape[2:], dtype=dtype, seed=seed + 1)
        output = library.ops["max_pool2d"](planes, *numbers)
        of_largest, *rest = library.gradient("max_pool2d", (planes, *numbers), output, dout, None)
        of_mean, *others = library.gradient("avg_pool2d", (planes, *numbers), mean.reshape(dout.shape), dout)
        assert all(is_prebuilt(call.kernel, call.constants) for call in library.calls)
    expected, positions = reference.max_pool2d(planes, *numbers)
    np.testing.assert_array_equal(largest.reshape(dout.shape), expected)
    np.testing.assert_array_equal(output[1], positions)
    np.testing.assert_array_equal(of_largest, reference.max_pool2d_backward(dout, output[1], height, width))
    np.testing.assert_allclose(mean.reshape(dout.shape), reference.avg_pool2d(planes, *numbers), rtol=bound, atol=bound)
    wanted = reference.avg_pool2d_backward(dout, *numbers, height, width)
    np.testing.assert_allclose(of_mean, wanted, rtol=bound, atol=bound)
    assert rest == others == [None] * 3 and {largest.dtype, mean.dtype, of_largest.dtype, of_mean.dtype} == {x.dtype}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("numbers", [(3, 2, 1), (2, 2, 0), (3, 1, 1)])
def test_pools_of_constant_windows(numbers: tuple[int, int, int], dtype: str) -> None:
    """Rows of whole vectors have kernels of their own, for several tiles of a plane and for a part of one."""
    _window, stride, padding = numbers
    for height, width in ((17 * stride, 72 * stride), (stride, 8 * stride)):
        x = _integers(2, height, width, dtype=dtype, seed=width)
        if padding:
            x[0, :2, :2], x[1, -1, -1] = -np.inf, np.nan
        strides = x.reshape(2, height // stride, stride, width)
        with interpreted() as library:
            largest, mean = library.module.max_pool2d(x, *numbers), library.module.avg_pool2d(x, *numbers)
            assert [call.kernel for call in library.calls] == ["max_pool2d_fixed", "avg_pool2d_fixed"]
            dout = _integers(*largest.shape, dtype=dtype, seed=3)
            output = library.ops["max_pool2d_fixed"](strides, *numbers)
            of_largest, *rest = library.gradient("max_pool2d_fixed", (strides, *numbers), output, dout, None)
            of_mean, *others = library.gradient("avg_pool2d_fixed", (strides, *numbers), mean, dout)
            assert all(is_prebuilt(call.kernel, call.constants) for call in library.calls)
        expected, taps = reference.max_pool2d_fixed(strides, *numbers)
        np.testing.assert_array_equal(largest, expected)
        np.testing.assert_array_equal(output[1], taps)
        wanted = reference.max_pool2d_fixed_backward(dout, output[1], *numbers, *strides.shape[1::2])
        np.testing.assert_array_equal(of_largest, wanted)
        bound = 1e-6 if dtype == "float32" else 2e-3
        np.testing.assert_allclose(mean, reference.avg_pool2d(x, *numbers), rtol=bound, atol=bound)
        wanted = reference.avg_pool2d_backward(dout, *numbers, height, width)
        np.testing.assert_allclose(of_mean.reshape(x.shape), wanted, rtol=bound, atol=bound)
        assert rest == others == [None] * 3 and {one.dtype for one in (largest, mean, of_largest, of_mean)} == {x.dtype}


def test_nan_is_the_largest_and_windows_touch_by_default() -> None:
    x = _integers(1, 6, 6)
    x[0, 1, 1], x[0, 2:4, 2:4] = np.nan, -np.inf
    with interpreted() as library:
        found = library.module.max_pool2d(x, 2)
        output = library.ops["max_pool2d"](x, 2, 2, 0)
    assert np.isnan(found[0, 0, 0]) and found[0, 1, 1] == -np.inf and found.shape == (1, 3, 3)
    assert output[1][0, 0, 0] == 7 and output[1][0, 1, 1] == 14


def test_references_of_gradients_are_slopes() -> None:
    random = np.random.default_rng(2)
    x, direction, dout = random.normal(size=(2, 9, 7)), random.normal(size=(2, 9, 7)), random.normal(size=(2, 4, 3))
    numbers = (3, 2, 0)
    _, positions = reference.max_pool2d(x, *numbers)
    found = slope(lambda at: (reference.max_pool2d(at, *numbers)[0] * dout).sum(), x, direction, 1e-6)
    gradient = reference.max_pool2d_backward(dout, positions.astype(np.int64), 9, 7)
    np.testing.assert_allclose((gradient * direction).sum(), found, rtol=1e-7)
    found = slope(lambda at: (reference.avg_pool2d(at, *numbers) * dout).sum(), x, direction)
    np.testing.assert_allclose((reference.avg_pool2d_backward(dout, *numbers, 9, 7) * direction).sum(), found, rtol=1e-7)
    pairs, towards, slopes = (random.normal(size=(2, 8, 2)) for _ in range(3))
    found = slope(lambda at: (reference.fft(at, -1.0, 1.0) * slopes).sum(), pairs, towards)
    np.testing.assert_allclose((reference.fft(slopes, 1.0, 1.0) * towards).sum(), found, rtol=1e-7)


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("length", [2**power for power in range(1, 13)])
def test_transforms_and_their_gradient(length: int, inverse: bool) -> None:
    x, dout = _random(3, 1, length, 2), _random(3, length, 2, seed=1)
    with interpreted() as library:
        out = library.module.fft(x, inverse)
        _, first, second, third = transforms.FORMS[length]
        roots = tensor(reference.fft_roots(length + second * third, length, length // first, third), np.float32)
        sign, scale = (1.0, 1 / length) if inverse else (-1.0, 1.0)
        dx, *rest = library.gradient("fft", (x[:, 0], roots, sign, scale), out[:, 0], dout)
        assert all(is_prebuilt(call.kernel, call.constants) for call in library.calls)
    transform = np.fft.ifft if inverse else np.fft.fft
    expected = transform(x[:, 0, :, 0] + 1j * x[:, 0, :, 1].astype(np.float64), axis=1)
    bound = 1e-6 * abs(expected).max()
    np.testing.assert_allclose(out[:, 0, :, 0] + 1j * out[:, 0, :, 1], expected, atol=bound)
    back = reference.fft(dout, -sign, scale)
    np.testing.assert_allclose(dx, back, atol=1e-6 * abs(back).max())
    assert rest == [None] * 3


@pytest.mark.parametrize(("length", "rows"), [(256, 3), (4096, 1)])
def test_the_emulator_transforms_rows_of_a_warp_and_of_several(length: int, rows: int) -> None:
    entry, constants = next(case for case in specialisations("fft") if case[1]["N"] == length)
    check_emulated(entry, constants, {"T": rows, "N": length, "sign": -1.0, "scale": 0.5})


def test_wrong_arguments() -> None:
    x = _random(2, 6, 6)
    with interpreted() as library:
        module = library.module
        assert module.max_pool2d(x[:0], 2).shape == (0, 3, 3)
        assert module.fft(_random(0, 8, 2)).shape == (0, 8, 2)
        with pytest.raises(ValueError, match="max_pool2d: `padding` is 2; it is from 0 to half of `window`, 1"):
            module.max_pool2d(x, 3, padding=2)
        with pytest.raises(ValueError, match="avg_pool2d: `window` is 0 and `stride` 1; both are from 1 to 16384"):
            module.avg_pool2d(x, 0, 1)
        with pytest.raises(ValueError, match="avg_pool2d: `x` has planes of 6 x 6; a side has at most 16384 elements"):
            module.avg_pool2d(x, 7)
        with pytest.raises(ValueError, match=r"fft: `x` has the shape \[2, 6, 6\]; it is `\[..., N, 2\]`"):
            module.fft(x)
        for length in (1, 6, 2 * transforms.LONGEST):
            with pytest.raises(ValueError, match=f"fft: rows of `x` have {length} elements; powers of two from 2 to 4096"):
                module.fft(_random(1, length, 2))
