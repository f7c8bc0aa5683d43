"""Sorts and the largest elements in NumPy. Functions and parameters are named like kernels and theirs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
Float = NDArray[np.float64]
Integers = NDArray[np.integer[Any]]
MERGED = 2048


def _keys(x: Array, descending: bool) -> Integers:
    """Integers in the order of f32 numbers."""
    bits = x.astype(np.float32).view(np.int32)
    ordered = np.where(np.isnan(x.astype(np.float32)), np.int32(2**31 - 1), bits ^ ((bits >> 31) & np.int32(2**31 - 1)))
    return ~ordered if descending else ordered


def _runs(keys: Integers, length: int) -> Integers:
    """The columns of keys that are sorted in runs of `length` elements."""
    found = np.empty_like(keys)
    for begin in range(0, keys.shape[1], length):
        found[:, begin : begin + length] = begin + np.argsort(keys[:, begin : begin + length], axis=1, kind="stable")
    return found


def _taken(x: Any, columns: Any) -> Any:
    return np.take_along_axis(x, columns, axis=1)


def sort(x: Array, descending: int) -> tuple[Float, Integers]:
    columns = _runs(_keys(x, bool(descending)), x.shape[1])
    return _taken(x.astype(np.float64), columns), columns


def sort_tiles(x: Array, descending: int, BLOCK: int) -> tuple[Integers, Integers]:
    keys = _keys(x, bool(descending))
    columns = _runs(keys, BLOCK)
    return _taken(keys, columns), columns


def merge_shares(keys: Integers, run: int, TILE: int) -> Integers:
    columns = _runs(keys, 2 * run)
    shares = np.zeros((len(keys), -(-keys.shape[1] // TILE)), np.int64)
    for tile in range(shares.shape[1]):
        first = tile * TILE // (2 * run) * (2 * run)
        shares[:, tile] = np.count_nonzero(columns[:, first : tile * TILE] < first + run, axis=1)
    return shares


def merge_runs(keys: Integers, positions: Integers, shares: Integers, run: int) -> tuple[Integers, Integers]:
    """`shares` follow from `keys`."""
    columns = _runs(keys, 2 * run)
    return _taken(keys, columns), _taken(positions, columns)


def topk(x: Array, parts: int, k: int, BLOCK: int) -> tuple[Float, Integers]:
    """Every part ends with -inf if it is short."""
    rows, length = x.shape
    tiles = -(-length // BLOCK)
    share = -(-tiles // parts) * BLOCK
    padded = np.full((rows, parts * share), -np.inf)
    padded[:, :length] = x.astype(np.float64)
    cut = padded.reshape(rows * parts, share)
    columns = _runs(_keys(cut, True), share)[:, :k]
    begins = np.arange(parts)[:, None] * share
    return _taken(cut, columns).reshape(rows, parts, k), begins + columns.reshape(rows, parts, k)


def topk_long(x: Array, parts: int, k: int, TILES: int, BLOCK: int) -> tuple[Float, Integers]:
    return topk(x, parts, k, TILES * BLOCK)


def take_columns(x: Array, columns: Integers) -> Float:
    inside = (columns >= 0) & (columns < x.shape[1])
    return np.where(inside, _taken(x.astype(np.float64), np.where(inside, columns, 0)), 0)


def put_columns(x: Array, columns: Integers, out: Array) -> Float:
    found = out.astype(np.float64)
    for row, (values, indices) in enumerate(zip(x.astype(np.float64), columns, strict=True)):
        inside = (indices >= 0) & (indices < found.shape[1])
        np.add.at(found[row], indices[inside], values[inside])
    return found


def _keys_of_runs(rng: np.random.Generator, dims: dict[str, Any]) -> tuple[Integers, Integers]:
    """Sorted runs of few keys, so that many are equal, and some are the last one; and where they were."""
    keys = rng.integers(-20, 20, (dims["T"], dims["N"])).astype(np.int32)
    keys[keys == 19] = 2**31 - 1
    columns = _runs(keys, dims["run"]).astype(np.int32)
    return _taken(keys, columns), columns


def merge_shares_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    return {"keys": _keys_of_runs(rng, dims)[0]}


def merge_runs_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    keys, positions = _keys_of_runs(rng, dims)
    shares = merge_shares(keys, int(dims["run"]), MERGED).astype(np.int32)
    return {"keys": keys, "positions": positions, "shares": shares}


def take_columns_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    """Some columns do not exist."""
    return {"columns": rng.integers(-2, dims["N"] + 2, (dims["T"], dims["K"])).astype(np.int32)}


def put_columns_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    """Distinct columns, some of which do not exist."""
    rows = [rng.permutation(dims["N"] + 4)[: dims["K"]] - 2 for _ in range(dims["T"])]
    return {"columns": np.array(rows, np.int32)}
