"""Convolutions of planes in NumPy and float64. Functions and parameters are named like kernels and theirs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
Float = NDArray[np.float64]


def _sources(count: int, tap: int, extent: int, down: int, up: int, direction: int, offset: int) -> NDArray[np.int64]:
    """The rows of a plane that rows of a result take with a tap, `extent` where there is none."""
    t = np.arange(count) * down + tap * direction + offset
    return np.where((t % up == 0) & (t >= 0) & (t // up < extent), t // up, extent)


def _pixels(
    x: Float, Q: int, rows: int, columns: int, r: int, s: int, down: int, up: int, direction: int, offset: int
) -> Float:
    """The pixels that Q positions of a result take with a tap of the filter, `[Q, C]`; 0 after the last sample."""
    padded = np.pad(x, ((0, 0), (0, 1), (0, 1), (0, 0)))
    h = _sources(rows, r, x.shape[1], down, up, direction, offset)
    w = _sources(columns, s, x.shape[2], down, up, direction, offset)
    found = padded[:, h][:, :, w].reshape(-1, x.shape[3])[:Q]
    return np.pad(found, ((0, Q - len(found)), (0, 0)))


def conv2d(
    x: Array, weight: Array, bias: Array, rows: int, columns: int, down: int, up: int, direction: int, offset: int, Q: int
) -> Float:
    planes, filters = x.astype(np.float64), weight.astype(np.float64)
    total = np.tile(bias.astype(np.float64), (Q, 1))
    for r in range(filters.shape[1]):
        for s in range(filters.shape[2]):
            total += _pixels(planes, Q, rows, columns, r, s, down, up, direction, offset) @ filters[:, r, s].T
    return total


def conv2d_weights(
    dout: Array, x: Array, rows: int, columns: int, stride: int, padding: int, height: int, width: int, P: int, BK: int
) -> Float:
    slopes, planes = dout.astype(np.float64), x.astype(np.float64)
    stripe = np.arange(len(slopes)) // BK % P
    found = np.zeros((P, slopes.shape[1], height, width, planes.shape[3]))
    for r in range(height):
        for s in range(width):
            pixels = _pixels(planes, len(slopes), rows, columns, r, s, stride, 1, 1, -padding)
            for p in range(P):
                found[p, :, r, s] = slopes[stripe == p].T @ pixels[stripe == p]
    return found


def column_sums(x: Array, P: int, ROWS: int) -> Float:
    stripe = np.arange(len(x)) // ROWS % P
    return np.stack([x.astype(np.float64)[stripe == p].sum(axis=0) for p in range(P)])
