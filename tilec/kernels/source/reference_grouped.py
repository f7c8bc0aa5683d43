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
TILE = 128


def _wide(array: Array) -> Float:
    return np.asarray(array).astype(np.float64)


def group_tiles(offsets: Integers, T: int) -> NDArray[np.int64]:
    count = len(offsets) - 1

    def group_of(rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return (np.searchsorted(offsets, rows, side="right") - 1).clip(0, count)

    first: NDArray[np.int64] = np.arange(0, T, ROWS)
    return np.stack((group_of(first), group_of(np.minimum(first + ROWS, T) - 1) + 1), axis=1)


def group_starts(offsets: Integers, T: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Any offsets: they are clamped to the rows, and none is less than the one before it."""
    inside = np.clip(np.asarray(offsets).astype(np.int64), 0, T)
    inside[0] = 0
    begins = np.append(np.maximum.accumulate(inside), T)
    return begins, np.append(0, np.cumsum(-(-np.diff(begins) // TILE)))


def group_blocks(begins: Integers, before: Integers, T: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    count = len(begins) - 2
    slots = T // TILE + count + 2
    groups, starts = np.full(slots, count + 1), np.full(slots, T)
    for group in range(count + 1):
        for tile in range(int(before[group]), int(before[group + 1])):
            groups[tile], starts[tile] = group, begins[group] + (tile - before[group]) * TILE
    return groups, starts


def _each(offsets: Integers) -> list[slice]:
    return [slice(int(begin), int(end)) for begin, end in pairwise(offsets)]


def _products(x: Array, matrices: Float, groups: Integers, starts: Integers) -> Float:
    """Rows of each tile times the matrix of its group, 0 for rows of none."""
    out = np.zeros((len(x), matrices.shape[2]))
    for group, rows in zip(groups, _each(starts), strict=False):
        if group < len(matrices):
            out[rows] = _wide(x)[rows] @ matrices[group]
    return out


def grouped_matmul(x: Array, weights: Array, groups: Integers, starts: Integers, before: Integers) -> Float:
    return _products(x, _wide(weights).transpose(0, 2, 1), groups, starts)


def grouped_matmul_few(x: Array, weights: Array, groups: Integers, offsets: Integers) -> Float:
    out = np.zeros((len(x), weights.shape[1]))
    for matrix, rows in zip(_wide(weights), _each(offsets), strict=True):
        out[rows] = _wide(x)[rows] @ matrix.T
    return out


def grouped_swiglu(x: Array, weights: Array, groups: Integers, starts: Integers, before: Integers) -> Float:
    gate, up = (grouped_matmul(x, weights[:, side], groups, starts, before) for side in (0, 1))
    return gate / (1 + np.exp(-gate)) * up


def grouped_swiglu_slopes(both: Array, dout: Array) -> Float:
    gate, up = _wide(both).transpose(1, 0, 2)
    share = 1 / (1 + np.exp(-gate))
    return np.stack((_wide(dout) * up * share * (1 + gate * (1 - share)), _wide(dout) * gate * share), axis=1)


def grouped_matmul_backward_x(dout: Array, weights: Array, groups: Integers, starts: Integers, before: Integers) -> Float:
    return _products(dout, _wide(weights), groups, starts)


def grouped_columns(dout: Array, starts: Integers) -> Float:
    tiles = np.zeros((len(starts), dout.shape[1], TILE))
    for tile, rows in enumerate(_each(starts)):
        tiles[tile, :, : rows.stop - rows.start] = _wide(dout)[rows].T
    return tiles


def grouped_matmul_backward_weights(tiles: Array, x: Array, starts: Integers, before: Integers) -> Float:
    dweights = np.zeros((len(before) - 2, tiles.shape[1], x.shape[1]))
    for group, of_group in enumerate(_each(before)[:-1]):
        for tile in range(of_group.start, of_group.stop):
            rows = slice(int(starts[tile]), int(starts[tile + 1]))
            dweights[group] += _wide(tiles)[tile][:, : rows.stop - rows.start] @ _wide(x)[rows]
    return dweights


def _offsets(rng: np.random.Generator, dims: dict[str, Any]) -> NDArray[np.int32]:
    """Some groups are empty, and some rows are of none."""
    count, rows = int(dims["X"]), int(dims["T"])
    end = rows - rows // 19
    cuts: NDArray[np.int64] = np.sort(rng.integers(0, end + 1, count - 1))
    return np.concatenate(([0], cuts, [end])).astype(np.int32)


def _operands(rng: np.random.Generator, dims: dict[str, Any], *parts: int) -> dict[str, Any]:
    weights = rng.standard_normal((dims["X"], *parts, dims["N"], dims["K"])) * dims["K"] ** -0.5
    return {"x": rng.standard_normal((dims["T"], dims["K"])), "weights": weights}


def _tables(offsets: NDArray[np.int32], rows: int) -> dict[str, Any]:
    begins, before = group_starts(offsets, rows)
    groups, starts = group_blocks(begins, before, rows)
    tables = {"begins": begins, "before": before, "groups": groups, "starts": starts}
    return {name: table.astype(np.int32) for name, table in tables.items()}


def _chosen(rng: np.random.Generator, dims: dict[str, Any], *names: str) -> dict[str, Any]:
    found = _tables(_offsets(rng, dims), int(dims["T"]))
    return {name: found[name] for name in names}


def group_tiles_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    return {"offsets": _offsets(rng, dims)}


def group_starts_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    return {"offsets": _offsets(rng, dims)}


def group_blocks_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    return _chosen(rng, dims, "begins", "before")


def grouped_matmul_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    return _operands(rng, dims) | _chosen(rng, dims, "groups", "starts", "before")


def grouped_matmul_few_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    offsets = _offsets(rng, dims)
    return _operands(rng, dims) | {"groups": group_tiles(offsets, int(dims["T"])).astype(np.int32), "offsets": offsets}


def grouped_swiglu_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    return _operands(rng, dims, 2) | _chosen(rng, dims, "groups", "starts", "before")


def grouped_matmul_backward_x_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    dout = rng.standard_normal((dims["T"], dims["N"])) * dims["N"] ** -0.5
    return {"dout": dout} | _chosen(rng, dims, "groups", "starts", "before")


def grouped_columns_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    return {"dout": rng.standard_normal((dims["T"], dims["N"]))} | _chosen(
        rng, dims | {"X": dims["S"] - dims["T"] // TILE - 2}, "starts"
    )


def grouped_matmul_backward_weights_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    found = _chosen(rng, dims, "starts", "before")
    dout = rng.standard_normal((dims["T"], dims["N"])) * dims["T"] ** -0.5
    return {"tiles": grouped_columns(dout, found["starts"]), "x": rng.standard_normal((dims["T"], dims["K"])), **found}
