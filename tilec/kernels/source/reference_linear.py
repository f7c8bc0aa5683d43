"""Products and the cross entropy of a linear layer in NumPy and float64. Functions and parameters are named like kernels and
theirs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Float = NDArray[np.float64]
Integers = NDArray[np.integer]

LOG2E = 1.4426950408889634


def _wide(array: Array) -> Float:
    return np.asarray(array).astype(np.float64)


def linear_sums(x: Array, weight: Array, BN: int) -> tuple[Float, Float]:
    """Past the last token what the kernel has there: the sums of tokens of zeros."""
    tokens = np.zeros((-(-len(x) // 8) * 8, x.shape[1]))
    tokens[: len(x)] = _wide(x)
    logits = tokens @ _wide(weight).T * LOG2E
    tiles = [logits[:, first : first + BN] for first in range(0, len(weight), BN)]
    maxima = np.stack([tile.max(axis=1) for tile in tiles])
    return maxima, np.stack([np.exp2(tile - top[:, None]).sum(axis=1) for tile, top in zip(tiles, maxima, strict=True)])


def linear_exponentials(x: Array, weight: Array, BN: int) -> tuple[Float, Float, Float]:
    maxima, sums = linear_sums(x, weight, BN)
    logits = np.full((len(x), len(maxima) * BN), -np.inf)
    logits[:, : len(weight)] = _wide(x) @ _wide(weight).T * LOG2E
    tiles = logits.reshape(len(x), len(maxima), BN).transpose(1, 0, 2)
    return maxima, sums, np.exp2(tiles - maxima[:, : len(x), None])


def linear_cross_entropy(
    x: Array, weight: Array, labels: Integers, maxima: Array, sums: Array, ignore_index: int
) -> tuple[Float, Float]:  # fmt: skip
    high = _wide(maxima).max(axis=0)
    lse = (np.log2((_wide(sums) * np.exp2(_wide(maxima) - high)).sum(axis=0)) + high)[: len(x)] / LOG2E
    valid = (labels >= 0) & (labels < len(weight))
    chosen = (_wide(x) * _wide(weight)[np.where(valid, labels, 0)]).sum(axis=1)
    return np.where(labels == ignore_index, 0.0, lse - np.where(valid, chosen, -np.inf)), lse


def linear_cross_entropy_kept(
    x: Array, weight: Array, labels: Integers, maxima: Array, sums: Array, ignore_index: int
) -> tuple[Float, Float]:  # fmt: skip
    return linear_cross_entropy(x, weight, labels, maxima, sums, ignore_index)


def linear_cross_entropy_backward(
    x: Array, weight: Array, labels: Integers, lse: Array, dloss: Array, first: int, ignore_index: int
) -> tuple[Float, Float]:  # fmt: skip
    weights = np.exp(_wide(x) @ _wide(weight).T - _wide(lse)[:, None])
    chosen = labels[:, None] == first + np.arange(len(weight))
    dlogits = (weights - chosen) * np.where(labels == ignore_index, 0.0, _wide(dloss))[:, None]
    rows, columns = np.zeros((len(x), -(-len(weight) // 8) * 8)), np.zeros((len(weight), -(-len(x) // 8) * 8))
    rows[:, : len(weight)], columns[:, : len(x)] = dlogits, dlogits.T
    return rows, columns


def linear_cross_entropy_slopes(
    kept: Array, maxima: Array, labels: Integers, lse: Array, dloss: Array, first: int, count: int, ignore_index: int
) -> tuple[Float, Float]:  # fmt: skip
    tiles, tokens, width = kept.shape
    scale = np.exp2(_wide(maxima)[:, :tokens] - _wide(lse) * LOG2E)
    weights = (_wide(kept) * scale[:, :, None]).transpose(1, 0, 2).reshape(tokens, tiles * width)
    classes: NDArray[np.int64] = np.arange(tiles * width, dtype=np.int64)
    chosen = (labels[:, None] == first + classes) & (classes < count)
    dlogits = (weights - chosen) * np.where(labels == ignore_index, 0.0, _wide(dloss))[:, None]
    columns = np.zeros((tiles * width, -(-tokens // 8) * 8))
    columns[:, :tokens] = dlogits.T
    return dlogits, columns


def product(a: Array, b: Array) -> Float:
    return _wide(a)[:, : len(b)] @ _wide(b)


def product_into(a: Array, b: Array, total: Array) -> Float:
    return _wide(total) + product(a, b)


def linear_sums_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    return {"weight": rng.standard_normal((dims["V"], dims["H"])) * dims["H"] ** -0.5}


def linear_exponentials_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    return linear_sums_inputs(rng, dims)


def linear_cross_entropy_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    """One label of five is ignored; of tiles of the vocabulary, those past the last class are empty."""
    x, count = rng.standard_normal((dims["T"], dims["H"])), int(dims["TILES"])
    weight = linear_sums_inputs(rng, dims)["weight"]
    found = linear_sums(x, weight, -(-int(dims["V"]) // count))
    missing = np.zeros((count - len(found[0]), found[0].shape[1]))
    maxima, sums = np.concatenate((found[0], missing - 1e30)), np.concatenate((found[1], missing))
    labels: NDArray[np.int64] = rng.integers(0, int(dims["V"]), int(dims["T"]))
    labels = np.where(rng.random(labels.shape) < 0.2, dims["ignore_index"], labels)
    return {"x": x, "weight": weight, "labels": labels, "maxima": maxima, "sums": sums}


def linear_cross_entropy_kept_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    return linear_cross_entropy_inputs(rng, dims)


def linear_cross_entropy_slopes_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    """Exponentials of `count` classes, of which the largest of each tile is 1."""
    tiles, tokens, width, first, count = (int(dims[name]) for name in ("TILES", "T", "WIDTH", "first", "count"))
    logits = np.full((tokens, tiles * width), -np.inf)
    logits[:, :count] = 2 * rng.standard_normal((tokens, count))
    shaped = logits.reshape(tokens, tiles, width).transpose(1, 0, 2)
    top = np.maximum(shaped.max(axis=2), -1e30)
    maxima = np.zeros((tiles, -(-tokens // 8) * 8))
    maxima[:, :tokens] = top
    labels: NDArray[np.int64] = rng.integers(0, first + count + 5, tokens)
    labels = np.where(rng.random(tokens) < 0.2, dims["ignore_index"], labels)
    lse = np.log(np.exp2(logits).sum(axis=1)) + 0.1
    return {"kept": np.exp2(shaped - top[:, :, None]), "maxima": maxima, "labels": labels, "lse": lse}


def linear_cross_entropy_backward_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    given = linear_cross_entropy_inputs(rng, {**dims, "TILES": 1})
    lse = np.log(np.exp(given["x"] @ given["weight"].T).sum(axis=1))
    return {"x": given["x"], "weight": given["weight"], "labels": given["labels"], "lse": lse}


def product_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    a = rng.standard_normal((dims["M"], dims["KA"])) * dims["K"] ** -0.5
    a[:, dims["K"] :] = 0
    return {"a": a}


def product_into_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    return product_inputs(rng, dims)
