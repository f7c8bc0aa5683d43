"""Mixtures of experts in NumPy and float64. Functions and parameters are named like kernels and theirs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
Float = NDArray[np.float64]
Integers = NDArray[np.integer[Any]]


def _tiles(ids: Integers, BLOCK: int, X: int) -> Integers:
    """How often experts are chosen in each tile."""
    tiles = -(-len(ids) // BLOCK)
    cut = [ids[tile * BLOCK : (tile + 1) * BLOCK] for tile in range(tiles)]
    return np.stack([np.bincount(one[(one >= 0) & (one < X)], minlength=X) for one in cut])


def expert_counts(ids: Integers, totals: Integers, BLOCK: int) -> tuple[Integers, Integers]:
    counts = _tiles(ids, BLOCK, len(totals))
    return counts, totals + counts.sum(axis=0)


def expert_starts(counts: Integers, totals: Integers) -> tuple[Integers, Integers]:
    ends = np.cumsum(totals)
    return ends - totals + np.cumsum(counts, axis=0) - counts, ends


def expert_slots(ids: Integers, starts: Integers, order: Integers) -> tuple[Integers, Integers]:
    """`starts` are those of the choices."""
    experts = starts.shape[1]
    slots = np.full(len(ids), -1)
    inside = (ids >= 0) & (ids < experts)
    slots[np.argsort(np.where(inside, ids, experts), kind="stable")[: inside.sum()]] = np.arange(inside.sum())
    found = order.copy()
    np.maximum.at(found, slots[inside], np.arange(len(ids))[inside])
    return slots, found


def moe_route(logits: Array, k: int, normalize: int) -> tuple[Float, Integers]:
    wide = logits.astype(np.float64)
    experts = np.argsort(-wide, axis=1, kind="stable")[:, :k]
    weights = np.exp(wide - wide.max(axis=1, keepdims=True))
    chosen = np.take_along_axis(weights, experts, axis=1)
    return chosen / (chosen if normalize else weights).sum(axis=1, keepdims=True), experts


def moe_route_backward(dweights: Array, logits: Array, weights: Array, experts: Integers, normalize: int) -> Float:
    """`weights` are the softmax of `logits`, as `moe_route` gives it."""
    wide = logits.astype(np.float64)
    share, slope = np.zeros_like(wide), np.zeros_like(wide)
    np.put_along_axis(share, experts, weights.astype(np.float64), axis=1)
    np.put_along_axis(slope, experts, dweights.astype(np.float64), axis=1)
    total = (share * slope).sum(axis=1, keepdims=True)
    if not normalize:
        share = np.exp(wide - wide.max(axis=1, keepdims=True))
        share /= share.sum(axis=1, keepdims=True)
    return share * (slope - total)


def _rows(x: Array, numbers: Integers) -> Float:
    """Rows by number, 0 where there is none."""
    inside = (numbers >= 0) & (numbers < len(x))
    return np.where(inside[..., None], x.astype(np.float64)[np.where(inside, numbers, 0)], 0)


def expand_rows(x: Array, weights: Array, order: Integers) -> Float:
    factors: Float = weights.astype(np.float64).reshape(-1, 1)
    return _rows(_rows(x, np.arange(len(factors)) // weights.shape[1]) * factors, order)


def combine_rows(y: Array, weights: Array, slots: Integers) -> Float:
    return (_rows(y, slots) * weights.astype(np.float64)[..., None]).sum(axis=1)


def combine_rows_dots(dout: Array, y: Array, slots: Integers) -> Float:
    return (_rows(y, slots) * dout.astype(np.float64)[:, None]).sum(axis=2)


def expert_counts_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    """Some choices are of no expert."""
    return {"ids": np.asarray(rng.integers(-1, dims["X"] + 1, dims["N"]), np.int32)}


def expert_starts_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    counts = rng.integers(0, 20, (dims["P"], dims["X"])).astype(np.int32)
    return {"counts": counts, "totals": counts.sum(axis=0).astype(np.int32)}


def expert_slots_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    ids = expert_counts_inputs(rng, dims)["ids"]
    counts = _tiles(ids, dims["BLOCK"], dims["X"])
    starts, _ = expert_starts(counts, counts.sum(axis=0))
    return {"ids": ids, "starts": starts.astype(np.int32), "order": np.full(dims["N"], -1, np.int32)}


def moe_route_backward_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    logits = rng.standard_normal((dims["T"], dims["X"]))
    weights, experts = moe_route(logits, dims["K"], int(dims["normalize"]))
    return {"logits": logits, "weights": weights, "experts": experts.astype(np.int32)}


def _slotted(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    """The order and slots of choices, of which one is of no expert."""
    order = rng.permutation(dims["N"]).astype(np.int32)
    slots = np.full(dims["N"], -1, np.int32)
    slots[order] = np.arange(dims["N"])
    slots[order[-1]], order[-1] = -1, -1
    return {"order": order, "slots": slots.reshape(dims["T"], dims["K"])}


def expand_rows_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    return _slotted(rng, dims)


def combine_rows_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    return _slotted(rng, dims)


def combine_rows_dots_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    return {"slots": _slotted(rng, dims)["slots"]}
