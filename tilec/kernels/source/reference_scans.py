"""Sums up to each element, and counts, in NumPy and float64. Functions and parameters are named like kernels and theirs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
Float = NDArray[np.float64]
Integers = NDArray[np.integer[Any]]


def cumsum(x: Array, reverse: int) -> Float:
    wide = x.astype(np.float64)
    return np.cumsum(wide[:, ::-1], axis=1)[:, ::-1] if reverse else np.cumsum(wide, axis=1)


def part_sums(x: Array, TILES: int, BLOCK: int) -> Float:
    wide, part = x.astype(np.float64), TILES * BLOCK
    return np.stack([wide[:, begin : begin + part].sum(axis=1) for begin in range(0, wide.shape[1], part)], axis=1)


def cumsum_parts(x: Array, reverse: int) -> Float:
    """`sums` are those of `x`."""
    return cumsum(x, reverse)


def _spread(counts: Integers, indices: Integers, VECTOR: int, BLOCK: int) -> Integers:
    """The counts `[BINS, COPIES]` after each number that has a bin; -1 stands for none."""
    copies = np.arange(len(indices)) % BLOCK // VECTOR % counts.shape[1]
    inside = indices >= 0
    found = counts.copy()
    np.add.at(found, (indices[inside], copies[inside]), 1)
    return found


def bincount(x: Integers, counts: Integers, BLOCK: int) -> Integers:
    return _spread(counts, np.where((x >= 0) & (x < len(counts)), x, -1), 4, BLOCK)


def histogram(x: Array, counts: Integers, low: float, high: float, BLOCK: int) -> Integers:
    """In f32, so that an element at the edge of a bin is in the same one."""
    wide = x.astype(np.float32)
    inside = (wide >= low) & (wide <= high) & np.isfinite(wide)
    width = np.float32(high) - np.float32(low)
    indices = (np.where(inside, wide, low).astype(np.float32) - np.float32(low)) / width * np.float32(len(counts))
    return _spread(counts, np.where(inside, np.clip(indices.astype(np.int64), 0, len(counts) - 1), -1), 8, BLOCK)


def sum_counts(counts: Integers) -> Integers:
    return counts.sum(axis=1)


def cumsum_parts_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    """Small integers, whose sums are exact."""
    x = rng.integers(-2, 3, (dims["T"], dims["N"])).astype(np.float64)
    return {"x": x, "sums": part_sums(x, dims["TILES"], dims["BLOCK"])}


def bincount_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    """Some numbers have no bin."""
    x = np.asarray(rng.integers(-3, dims["BINS"] + 3, dims["N"]), np.int64)
    x[0] = -(2**31)
    return {"x": x, "counts": np.zeros((dims["BINS"], dims["COPIES"]), np.int32)}


def histogram_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    x = np.asarray(rng.standard_normal(dims["N"]), np.float64)
    low, high = -1.5, 2.0
    x[:5] = np.array([low, high, np.nan, np.inf, -np.inf])[: len(x)]
    return {"x": x, "counts": np.zeros((dims["BINS"], dims["COPIES"]), np.int32), "low": low, "high": high}
