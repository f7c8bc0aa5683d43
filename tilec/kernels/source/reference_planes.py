"""Pools and transforms in NumPy and float64. Functions and parameters are named like kernels and theirs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
Float = NDArray[np.float64]
Integers = NDArray[np.integer[Any]]


def _windows(x: Float, window: int, stride: int, padding: int, outside: float) -> Float:
    """The elements of each window in the order of rows, along a last axis."""
    sides = ((0, 0), (padding, padding), (padding, padding))
    padded = np.pad(x, sides, constant_values=outside)
    views = np.lib.stride_tricks.sliding_window_view(padded, (window, window), axis=(1, 2))[:, ::stride, ::stride]
    return views.reshape(*views.shape[:3], window * window)


def _indices(shape: tuple[int, ...], window: int, stride: int, padding: int) -> Float:
    """The position in its plane of each element of each window, -1 of those outside."""
    numbers = np.arange(shape[1] * shape[2], dtype=np.float64).reshape(1, *shape[1:])
    return _windows(numbers, window, stride, padding, -1)


def max_pool2d(x: Array, window: int, stride: int, padding: int) -> tuple[Float, Float]:
    elements = _windows(x.astype(np.float64), window, stride, padding, -np.inf)
    indices = np.broadcast_to(_indices(x.shape, window, stride, padding), elements.shape)
    which = elements.argmax(axis=-1)[..., None]
    return np.take_along_axis(elements, which, axis=-1)[..., 0], np.take_along_axis(indices, which, axis=-1)[..., 0]


def max_pool2d_backward(dout: Array, positions: Integers, H: int, W: int) -> Float:
    found = np.zeros((dout.shape[0], H * W))
    for plane, (values, indices) in enumerate(zip(dout.astype(np.float64), positions, strict=True)):
        np.add.at(found[plane], indices.reshape(-1), values.reshape(-1))
    return found.reshape(-1, H, W)


def avg_pool2d(x: Array, window: int, stride: int, padding: int) -> Float:
    return _windows(x.astype(np.float64), window, stride, padding, 0).mean(axis=-1)


def avg_pool2d_backward(dout: Array, window: int, stride: int, padding: int, H: int, W: int) -> Float:
    indices = _indices((1, H, W), window, stride, padding)[0].astype(np.int64)
    found = np.zeros((dout.shape[0], H * W + 1))
    for plane, values in enumerate(dout.astype(np.float64) / window**2):
        np.add.at(found[plane], indices, np.broadcast_to(values[..., None], indices.shape))
    return found[:, :-1].reshape(-1, H, W)


def _planes(x: Array) -> Array:
    """Planes whose rows are split by the stride."""
    return x.reshape(x.shape[0], -1, x.shape[-1])


def max_pool2d_fixed(x: Array, window: int, stride: int, padding: int) -> tuple[Float, Float]:
    elements = _windows(_planes(x).astype(np.float64), window, stride, padding, -np.inf)
    inside = _indices(_planes(x).shape, window, stride, padding) >= 0
    most = elements.max(axis=-1, keepdims=True)
    is_largest = (elements == most) | np.isnan(elements)
    return most[..., 0], (is_largest & inside).argmax(axis=-1).astype(np.float64)


def max_pool2d_fixed_backward(
    dout: Array, taps: Integers, window: int, stride: int, padding: int, HS: int, W: int
) -> Float:  # fmt: skip
    indices = _indices((1, HS * stride, W), window, stride, padding).astype(np.int64)
    chosen = np.take_along_axis(np.broadcast_to(indices, (*taps.shape, window**2)), taps.astype(np.int64)[..., None], axis=-1)
    return max_pool2d_backward(dout, chosen[..., 0], HS * stride, W).reshape(-1, HS, stride, W)


def avg_pool2d_fixed(x: Array, window: int, stride: int, padding: int) -> Float:
    return avg_pool2d(_planes(x), window, stride, padding)


def avg_pool2d_fixed_backward(dout: Array, window: int, stride: int, padding: int, HS: int, W: int) -> Float:
    return avg_pool2d_backward(dout, window, stride, padding, HS * stride, W).reshape(-1, HS, stride, W)


def fft_roots(R: int, N: int, FIRST: int, SECOND: int) -> Float:
    turns = [(i // FIRST) * (i % FIRST) / N for i in range(N)]
    turns += [(i // SECOND) * (i % SECOND) / (R - N) for i in range(R - N)]
    angles = -2 * np.pi * np.array(turns)
    return np.stack((np.cos(angles), np.sin(angles)), axis=1)


def fft(x: Array, sign: float, scale: float) -> Float:
    """`roots` are those of unity."""
    pairs = x.astype(np.float64)
    found = np.fft.fft(pairs[..., 0] - 1j * sign * pairs[..., 1], axis=1) * scale
    return np.stack((found.real, -sign * found.imag), axis=2)


def max_pool2d_backward_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    x = rng.standard_normal((dims["M"], dims["H"], dims["W"]))
    positions = max_pool2d(x, dims["window"], dims["stride"], dims["padding"])[1]
    return {"positions": np.asarray(positions, np.int32)}


def max_pool2d_fixed_backward_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    x = rng.standard_normal((dims["M"], dims["HS"], dims["stride"], dims["W"]))
    taps = max_pool2d_fixed(x, dims["window"], dims["stride"], dims["padding"])[1]
    return {"taps": np.asarray(taps, np.uint8)}


def fft_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    """In one of the two directions."""
    length, rest = dims["N"], dims["B"] * dims["C"]
    return {"roots": fft_roots(length + rest, length, rest, dims["C"]), "sign": rng.choice([-1.0, 1.0])}
