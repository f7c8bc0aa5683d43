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


def _unsplit(x: Float) -> Float:
    """The planes `[B, H, W, C]` that are split into `[B, H, D, W, D * C]`."""
    samples, height, stride, width, channels = x.shape
    return x.reshape(samples, height * stride, width * stride, channels // stride)


def conv2d_boxes(x: Array, weight: Array, bias: Array, rows: int, columns: int, direction: int, offset: int, BB: int) -> Float:
    planes, stride = _unsplit(x.astype(np.float64)), x.shape[2]
    count = len(planes) * rows * columns
    found = conv2d(planes, weight, bias, rows, columns, stride, 1, direction, offset, count)
    return found.reshape(len(planes), rows, columns, len(weight))


def channels_last(x: Array) -> Float:
    return x.astype(np.float64).transpose(0, 2, 1)


def conv2d_slopes(dout: Array, BB: int, BH: int, BW: int) -> Float:
    many, columns = BB * BH, dout.shape[2]
    slopes = dout.astype(np.float64).transpose((1, 0, 2, 3) if BB > 1 else (0, 1, 2, 3))
    padded = np.pad(slopes, ((0, 0), (0, -slopes.shape[1] % many), (0, -columns % BW), (0, 0)))
    parts = padded.reshape(len(padded), -1, many, padded.shape[2] // BW, BW, padded.shape[3])
    return parts.transpose(5, 0, 1, 3, 2, 4).reshape(padded.shape[3], -1)


def conv2d_weights_boxes(
    transposed: Array,
    x: Array,
    height: int,
    width: int,
    across: int,
    down: int,
    padding: int,
    P: int,
    BB: int,
    BH: int,
    BW: int,
) -> Float:
    planes, many, stride = _unsplit(x.astype(np.float64)), BB * BH, x.shape[2]
    single = transposed.shape[1] // (across * down * many * BW)
    parts = transposed.astype(np.float64).reshape(-1, single, down, across, many, BW)
    slopes = parts.transpose(1, 2, 4, 3, 5, 0).reshape(single, down * many, across * BW, -1)
    numbers: NDArray[np.int64] = np.arange(single * down * across, dtype=np.int64).reshape(single, down, 1, across, 1, 1)
    spread: NDArray[np.int64] = np.broadcast_to(numbers % P, (single, down, many, across, BW, 1))
    owners: NDArray[np.int64] = spread.reshape(single, down * many, across * BW, 1)
    if BB > 1:
        slopes, owners = slopes.transpose(1, 0, 2, 3), owners.transpose(1, 0, 2, 3)
    samples, rows, columns = len(planes), slopes.shape[1], slopes.shape[2]
    slopes, owners = slopes[:samples], owners[:samples]
    found = np.zeros((P, slopes.shape[3], height, width, planes.shape[3]))
    for r in range(height):
        for s in range(width):
            count = samples * rows * columns
            pixels = _pixels(planes, count, rows, columns, r, s, stride, 1, 1, -padding)
            for p in range(P):
                found[p, :, r, s] = np.where(owners == p, slopes, 0.0).reshape(count, -1).T @ pixels
    return found


def column_sums(x: Array, P: int, ROWS: int) -> Float:
    stripe = np.arange(len(x)) // ROWS % P
    return np.stack([x.astype(np.float64)[stripe == p].sum(axis=0) for p in range(P)])
