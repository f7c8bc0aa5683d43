"""Rows of tables in NumPy and float64. Functions and parameters are named like kernels and theirs."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
Float = NDArray[np.float64]
Integers = NDArray[np.integer[Any]]
LAST = 2**31 - 1


def take_rows(ids: Integers, table: Array) -> Float:
    inside = (ids >= 0) & (ids < len(table))
    return np.where(inside[:, None], table.astype(np.float64)[np.where(inside, ids, 0)], 0)


def sort_numbers(ids: Integers, BLOCK: int) -> tuple[Integers, Integers]:
    keys = np.where((ids >= 0) & (ids < LAST), ids, LAST)
    columns = np.empty_like(keys)
    for begin in range(0, keys.shape[1], BLOCK):
        columns[:, begin : begin + BLOCK] = begin + np.argsort(keys[:, begin : begin + BLOCK], axis=1, kind="stable")
    return np.take_along_axis(keys, columns, axis=1), columns


def count_below(numbers: Integers, count: int) -> Integers:
    return np.searchsorted(numbers, np.arange(count))


def table_gradient(dout: Array, scales: Array, rows: Integers, starts: Integers) -> Float:
    each = take_rows(rows, dout.astype(np.float64) * scales.astype(np.float64)[:, None])
    return np.stack([each[begin:end].sum(axis=0) for begin, end in pairwise(starts)])


def bag_scales(offsets: Integers, count: int, mean: int) -> Float:
    lengths = np.diff(np.append(offsets, count))
    return np.where(lengths > 0, 1 / (np.maximum(lengths, 1) if mean else 1.0), 0)


def embedding_bag(ids: Integers, offsets: Integers, scales: Array, table: Array) -> Float:
    rows, ends = take_rows(ids, table), np.append(offsets[1:], len(ids))
    sums = [rows[begin:end].sum(axis=0) for begin, end in zip(offsets, ends, strict=True)]
    return np.stack(sums) * scales.astype(np.float64)[:, None]


def _numbers(rng: np.random.Generator, count: int, most: int) -> Integers:
    """Some are not those of a row."""
    return np.asarray(rng.integers(-2, most + 2, count), np.int32)


def _sorted(rng: np.random.Generator, count: int, most: int) -> Integers:
    return np.sort(np.asarray(rng.integers(0, most + 1, count), np.int32))


def take_rows_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    return {"ids": _numbers(rng, dims["N"], dims["V"])}


def sort_numbers_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    return {"ids": _numbers(rng, dims["N"], 1000)[None, :]}


def count_below_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    return {"numbers": _sorted(rng, dims["N"], dims["Q"] + 3)}


def table_gradient_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    return {"rows": _numbers(rng, dims["N"], dims["B"]), "starts": _sorted(rng, dims["V"] + 1, dims["N"])}


def bag_scales_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    return {"offsets": _sorted(rng, dims["B"], dims["count"])}


def embedding_bag_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    return {"ids": _numbers(rng, dims["N"], dims["V"]), "offsets": _sorted(rng, dims["B"], dims["N"])}
