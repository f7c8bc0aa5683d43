"""`conv2d` is PyTorch's of one group, with strides, padding, planes of either layout, and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.library.emulated import check_emulated
from tests.library.interpreted import Array, interpreted, tensor
from tests.library.prebuilt import is_prebuilt, request, slope, specialisations
from tilec.kernels.source import reference_convolutions as reference
from tilec.project.trial.trial import trials


def _integers(*shape: int, seed: int = 0) -> Any:
    """Small integers, whose products have exact sums."""
    return tensor(np.random.default_rng(seed).integers(-2, 3, shape), np.float16)


def _windows(x: Any, filters: Any, stride: int, padding: int) -> Any:
    """The window of each position of the result, `[B, C, rows, columns, R, S]`."""
    padded = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    return np.lib.stride_tricks.sliding_window_view(padded, filters.shape[2:], axis=(2, 3))[:, :, ::stride, ::stride]


def _convolved(x: Any, filters: Any, stride: int, padding: int) -> Any:
    return np.einsum("bcijrs,ocrs->boij", _windows(x, filters, stride, padding), filters)


@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 2), st.sampled_from([1, 3, 8, 40]), st.sampled_from([1, 8, 70]), st.integers(1, 9), st.integers(1, 9),
    st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2), st.booleans(),
)  # fmt: skip
def test_convolutions_and_their_gradients(
    count: int, channels: int, outputs: int, height: int, width: int, r: int, s: int, stride: int, padding: int, last: bool
) -> None:
    assume(height + 2 * padding >= r and width + 2 * padding >= s)
    x, filters, bias = _integers(count, channels, height, width), _integers(outputs, channels, r, s, seed=1), _integers(outputs)
    if last:
        x = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).view(Array).transpose(0, 3, 1, 2)
    with interpreted() as library:
        out = library.module.conv2d(x, filters, bias, stride, padding)
        without = library.module.conv2d(x, filters, None, stride, padding)
        rows, columns = out.shape[2:]
        planes, taps = (one.permute(0, 2, 3, 1).contiguous() for one in (x, filters))
        inputs = (planes, taps, bias, rows, columns, stride, 1, 1, -padding)
        dout = _integers(count * rows * columns, outputs, seed=2)
        dx, dweight, dbias, *rest = library.gradient("conv2d", inputs, library.ops["conv2d"](*inputs), dout)
        assert all(is_prebuilt(call.kernel, call.constants) for call in library.calls)
    expected = _convolved(x.astype(np.float64), filters.astype(np.float64), stride, padding)
    np.testing.assert_allclose(without, expected, rtol=1e-3)
    np.testing.assert_allclose(out, expected + bias.astype(np.float64)[:, None, None], rtol=1e-3)
    _check_gradients(x, filters, stride, padding, dout.reshape(count, rows, columns, outputs), (dx, dweight, dbias))
    assert rest == [None] * 6 and {one.dtype for one in (out, dx, dweight, dbias)} == {x.dtype}


@settings(max_examples=8, deadline=None)
@given(
    st.sampled_from([1, 3, 8, 17, 32]), st.sampled_from([8, 64, 72, 128]), st.sampled_from([8, 72]), st.integers(1, 6),
    st.integers(1, 9), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2), st.booleans(),
)  # fmt: skip
def test_convolutions_by_boxes_and_their_gradients(
    count: int, channels: int, outputs: int, height: int, width: int, r: int, s: int, stride: int, padding: int, last: bool
) -> None:
    """Boxes of rows or of samples, padding, and planes that a stride splits, also where it does not divide their sides."""
    assume(height + 2 * padding >= r and width + 2 * padding >= s and (stride == 1 or channels % 64 == 0))
    x, filters, bias = _integers(count, channels, height, width), _integers(outputs, channels, r, s, seed=1), _integers(outputs)
    if last:
        x = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).view(Array).transpose(0, 3, 1, 2)
    with interpreted() as library:
        op = library.ops["conv2d_boxes"]
        out = library.module.conv2d(x, filters, bias, stride, padding)
        moved = [] if x.permute(0, 2, 3, 1).is_contiguous() or not x.is_contiguous() else ["channels_last"]
        assert [call.kernel for call in library.calls] == [*moved, "conv2d_boxes"]
        rows, columns = out.shape[2:]
        dout = _integers(count, rows, columns, outputs, seed=2)
        if last:  # slopes as the result lies in memory, or as a reduction of planes leaves them
            dout = np.ascontiguousarray(dout.transpose(0, 3, 1, 2)).view(Array).transpose(0, 2, 3, 1)
        sides = -(-height // stride), stride, -(-width // stride), stride
        padded = tensor(np.zeros((count, sides[0] * stride, sides[2] * stride, channels)), np.float16)
        padded[:, :height, :width] = x.transpose(0, 2, 3, 1)
        parts = padded.reshape(count, *sides[:3], stride * channels)
        taps = filters.permute(0, 2, 3, 1).contiguous()
        inputs = (parts, taps, bias, rows, columns, 1, -padding)
        dx, dweight, dbias, *rest = library.gradient("conv2d_boxes", inputs, op(*inputs), dout)
        assert all(is_prebuilt(call.kernel, call.constants) for call in library.calls)
    expected = _convolved(x.astype(np.float64), filters.astype(np.float64), stride, padding)
    np.testing.assert_allclose(out, expected + bias.astype(np.float64)[:, None, None], rtol=1e-3)
    assert dx.shape == parts.shape
    whole = dx.reshape(padded.shape)[:, :height, :width]
    _check_gradients(x, filters, stride, padding, dout, (whole, dweight, dbias))
    assert rest == [None] * 4 and {one.dtype for one in (out, dx, dweight, dbias)} == {x.dtype}


def _check_gradients(x: Any, filters: Any, stride: int, padding: int, dout: Any, found: tuple[Any, Any, Any]) -> None:
    """Gradients of planes `[B, H, W, C]`, filters `[O, R, S, C]` and a bias, of slopes `[B, rows, columns, O]`."""
    (count, channels, height, width), (r, s) = x.shape, filters.shape[2:]
    wide, exact, slopes = (one.astype(np.float64) for one in (x, filters, dout))
    dx, dweight, dbias = found
    windows = _windows(wide, exact, stride, padding)
    np.testing.assert_allclose(dweight, np.einsum("bijo,bcijrs->orsc", slopes, windows), rtol=1e-3)
    np.testing.assert_allclose(dbias, slopes.sum(axis=(0, 1, 2)), rtol=1e-3)
    back = np.zeros((count, channels, height + 2 * padding, width + 2 * padding))
    for i in range(slopes.shape[1]):
        for j in range(slopes.shape[2]):
            window = back[:, :, i * stride : i * stride + r, j * stride : j * stride + s]
            window += np.einsum("bo,ocrs->bcrs", slopes[:, i, j], exact)
    inner = back[:, :, padding : padding + height, padding : padding + width]
    np.testing.assert_allclose(dx, inner.transpose(0, 2, 3, 1), rtol=1e-3)


@pytest.mark.parametrize("dims", [{"B": 3, "C": 72, "N": 136}, {"B": 2, "C": 65, "N": 129}, {"B": 1, "C": 1, "N": 3}])
def test_planes_with_channels_last(dims: dict[str, int]) -> None:
    """On the interpreter with their reference, and on the emulator, of every shape that has a kernel."""
    for entry, constants in specialisations("channels_last"):
        if constants["E"] == "f16" and dims["C"] % constants["MULTIPLE"] == 0 == dims["N"] % constants["MULTIPLE"]:
            (trial,) = trials(request("channels_last", constants, dims))
            assert trial.right and all(one.error is not None for one in trial.written), trial
            check_emulated(entry, constants, dims)


def test_the_gradient_of_channels_last_is_its_inverse() -> None:
    x, dout = _integers(2, 5, 6), _integers(2, 6, 5, seed=1)
    with interpreted() as library:
        out = library.ops["channels_last"](x)
        np.testing.assert_array_equal(out, x.transpose(0, 2, 1))
        np.testing.assert_array_equal(library.gradient("channels_last", (x,), out, dout), dout.transpose(0, 2, 1))


def test_references_of_gradients_are_slopes() -> None:
    random = np.random.default_rng(4)
    x, filters, bias = random.normal(size=(2, 7, 6, 3)), random.normal(size=(4, 3, 2, 3)), random.normal(size=4)
    rows, columns, stride, padding = 4, 4, 2, 1
    numbers, dout = (rows, columns, stride, 1, 1, -padding, 32), random.normal(size=(32, 4))
    to_x, to_filters = random.normal(size=x.shape), random.normal(size=filters.shape)
    found = slope(lambda at: (reference.conv2d(at, filters, bias, *numbers) * dout).sum(), x, to_x)
    turned, nothing = filters.transpose(3, 1, 2, 0), np.zeros(3)
    dx = reference.conv2d(dout.reshape(2, 4, 4, 4), turned, nothing, 7, 6, 1, stride, -1, padding, 84)
    np.testing.assert_allclose((dx.reshape(x.shape) * to_x).sum(), found, rtol=1e-8)
    found = slope(lambda at: (reference.conv2d(x, at, bias, *numbers) * dout).sum(), filters, to_filters)
    partial = reference.conv2d_weights(dout, x, rows, columns, stride, padding, 3, 2, 2, 8)
    np.testing.assert_allclose((partial.sum(axis=0) * to_filters).sum(), found, rtol=1e-8)


def test_wrong_arguments() -> None:
    x, filters = _integers(1, 3, 5, 5), _integers(4, 3, 3, 3)
    with interpreted() as library:
        conv2d = library.module.conv2d
        with pytest.raises(ValueError, match="conv2d: `x` has 3 axes; 4 are needed"):
            conv2d(x[0], filters)
        with pytest.raises(ValueError, match="conv2d: `x` is float32; bfloat16 or float16 is needed"):
            conv2d(x.float(), filters)
        with pytest.raises(ValueError, match=r"conv2d: `weight` has the shape \[4, 3, 3, 3\] and `bias` \[3\]; they are"):
            conv2d(x, filters, _integers(3))
        with pytest.raises(ValueError, match=r"conv2d: `weight` has the shape \[4, 2, 3, 3\]; they are `\[O, 3, R, S\]`"):
            conv2d(x, filters[:, :2])
        with pytest.raises(ValueError, match="conv2d: `stride` is 0 and `padding` 0; they are from 1 and from 0 to 16384"):
            conv2d(x, filters, stride=0)
        with pytest.raises(ValueError, match="conv2d: planes of 5 x 5 and filters of 6 x 3 give 0 x 3; sides are from 1"):
            conv2d(x, _integers(4, 3, 6, 3))
        with pytest.raises(ValueError, match="conv2d: `x` or `weight` has no elements"):
            conv2d(x[:0], filters)
