"""Grouped products and their gradients in NumPy and float64. Functions and parameters are named like kernels and theirs."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Float = NDArray[np.float64]
Integers = NDArray[np.integer]

ROWS = 16


def _wide(array: Array) -> Float:
    return np.asarray(array).astype(np.float64)


def group_tiles(offsets: Integers, T: int) -> NDArray[np.int64]:
    count = len(offsets) - 1

    def group_of(rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return (np.searchsorted(offsets, rows, side="right") - 1).clip(0, count)

    first: NDArray[np.int64] = np.arange(0, T, ROWS)
    return np.stack((group_of(first), group_of(np.minimum(first + ROWS, T) - 1) + 1), axis=1)


def _each(offsets: Integers) -> list[slice]:
    return [slice(int(begin), int(end)) for begin, end in pairwise(offsets)]


def grouped_matmul(x: Array, weights: Array, groups: Integers, offsets: Integers) -> Float:
    out = np.zeros((len(x), weights.shape[1]))
    for matrix, rows in zip(_wide(weights), _each(offsets), strict=True):
        out[rows] = _wide(x)[rows] @ matrix.T
    return out


def grouped_matmul_few(x: Array, weights: Array, groups: Integers, offsets: Integers) -> Float:
    return grouped_matmul(x, weights, groups, offsets)


def grouped_swiglu(x: Array, weights: Array, groups: Integers, offsets: Integers) -> Float:
    gate, up = (grouped_matmul(x, weights[:, side], groups, offsets) for side in (0, 1))
    return gate / (1 + np.exp(-gate)) * up


def grouped_matmul_backward_x(dout: Array, weights: Array, groups: Integers, offsets: Integers) -> Float:
    dx = np.zeros((len(dout), weights.shape[2]))
    for matrix, rows in zip(_wide(weights), _each(offsets), strict=True):
        dx[rows] = _wide(dout)[rows] @ matrix
    return dx


def grouped_matmul_backward_weights(transposed: Array, x: Array, offsets: Integers) -> Float:
    return np.stack([_wide(transposed)[:, rows] @ _wide(x)[rows] for rows in _each(offsets)])


def grouped_matmul_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    """Some groups are empty, and some rows are of none."""
    count, rows = int(dims["X"]), int(dims["T"])
    end = rows - rows // 19
    cuts: NDArray[np.int64] = np.sort(rng.integers(0, end + 1, count - 1))
    offsets = np.concatenate(([0], cuts, [end])).astype(np.int32)
    return {
        "x": rng.standard_normal((rows, dims["K"])),
        "weights": rng.standard_normal((count, dims["N"], dims["K"])) * dims["K"] ** -0.5,
        "groups": group_tiles(offsets, rows).astype(np.int32),
        "offsets": offsets,
    }


def group_tiles_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    return {"offsets": grouped_matmul_inputs(rng, {**dims, "N": 8, "K": 8})["offsets"]}


def grouped_matmul_few_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    return grouped_matmul_inputs(rng, dims)


def grouped_swiglu_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    given = grouped_matmul_inputs(rng, dims)
    return given | {"weights": rng.standard_normal((dims["X"], 2, dims["N"], dims["K"])) * dims["K"] ** -0.5}


def grouped_matmul_backward_x_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    given = grouped_matmul_inputs(rng, dims)
    dout = rng.standard_normal((dims["T"], dims["N"])) * dims["N"] ** -0.5
    return {"dout": dout, "groups": given["groups"], "offsets": given["offsets"]}


def grouped_matmul_backward_weights_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    given = grouped_matmul_inputs(rng, dims)
    transposed = rng.standard_normal((dims["N"], dims["TA"])) * dims["T"] ** -0.5
    transposed[:, dims["T"] :] = 0
    return {"transposed": transposed, "x": given["x"], "offsets": given["offsets"]}
