"""Softmax and norms in NumPy and float64. Functions and parameters are
named like kernels and theirs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
Float = NDArray[np.float64]


def wide(x: Array) -> Float:
    return x.astype(np.float64)


def softmax(x: Array) -> Float:
    weights = np.exp(wide(x) - wide(x).max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def softmax_backward(dout: Array, out: Array) -> Float:
    total = (wide(dout) * wide(out)).sum(axis=1, keepdims=True)
    return wide(out) * (wide(dout) - total)


def softmax_long(x: Array) -> Float:
    return softmax(x)


def softmax_long_backward(dout: Array, out: Array) -> Float:
    return softmax_backward(dout, out)


def layer_norm(x: Array, weight: Array, bias: Array, eps: float) -> tuple[Float, Float, Float]:
    mean = wide(x).mean(axis=1)
    rstd = 1 / np.sqrt(wide(x).var(axis=1) + eps)
    y = (wide(x) - mean[:, None]) * rstd[:, None]
    return y * wide(weight) + wide(bias), mean, rstd


def layer_norm_backward(dout: Array, x: Array, weight: Array, mean: Array, rstd: Array, P: int) -> tuple[Float, Float]:
    """The second has a sum for each of P stripes: of every P-th row."""
    scale = wide(rstd)[:, None]
    y = (wide(x) - wide(mean)[:, None]) * scale
    dy = wide(dout) * wide(weight)
    slope = (dy * y).mean(axis=1, keepdims=True)
    dx = scale * (dy - dy.mean(axis=1, keepdims=True) - y * slope)
    return dx, np.stack([stripes(wide(dout) * y, P), stripes(wide(dout), P)], axis=1)


def rms_norm(x: Array, weight: Array, eps: float) -> tuple[Float, Float]:
    rstd = 1 / np.sqrt((wide(x) ** 2).mean(axis=1) + eps)
    return wide(x) * rstd[:, None] * wide(weight), rstd


def rms_norm_backward(dout: Array, x: Array, weight: Array, rstd: Array, P: int) -> tuple[Float, Float]:
    """The second has a sum for each of P stripes: of every P-th row."""
    scale = wide(rstd)[:, None]
    y = wide(x) * scale
    dy = wide(dout) * wide(weight)
    dx = scale * (dy - y * (dy * y).mean(axis=1, keepdims=True))
    return dx, stripes(wide(dout) * y, P)


def stripes(x: Float, P: int) -> Float:
    """Sums of rows p, p + P, p + 2 P and so on."""
    return np.stack([x[p::P].sum(axis=0) for p in range(P)])


def sum_partials(partial: Array) -> Float:
    return wide(partial).sum(axis=0)


def group_norm(x: Array, weight: Array, bias: Array, eps: float) -> tuple[Float, Float, Float]:
    mean = wide(x).mean(axis=(2, 3))
    rstd = 1 / np.sqrt(wide(x).var(axis=(2, 3)) + eps)
    y = (wide(x) - mean[:, :, None, None]) * rstd[:, :, None, None]
    return y * wide(weight)[None, :, :, None] + wide(bias)[None, :, :, None], mean, rstd


def group_norm_backward(dout: Array, x: Array, weight: Array, mean: Array, rstd: Array) -> tuple[Float, Float]:
    scale = wide(rstd)[:, :, None, None]
    y = (wide(x) - wide(mean)[:, :, None, None]) * scale
    dy = wide(dout) * wide(weight)[None, :, :, None]
    low = dy.mean(axis=(2, 3), keepdims=True)
    slope = (dy * y).mean(axis=(2, 3), keepdims=True)
    partial = np.stack([(wide(dout) * y).sum(axis=3), wide(dout).sum(axis=3)], axis=1)
    return scale * (dy - low - y * slope), partial
