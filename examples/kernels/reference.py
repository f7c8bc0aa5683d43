"""What the examples compute, in NumPy and float64.

Each function is named like its kernel and its parameters like those of the kernel: arrays, integer or float as the kernel has
them, and constants. It returns what the kernel writes, one array for each `Out` in their order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
Float = NDArray[np.float64]


def softmax(x: Array) -> Float:
    wide = x.astype(np.float64)
    weights = np.exp(wide - wide.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def online_softmax(x: Array) -> Float:
    return softmax(x)


def layer_norm(x: Array, weight: Array, bias: Array, eps: float) -> Float:
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axis=1, keepdims=True)
    scale = 1 / np.sqrt((centred**2).mean(axis=1, keepdims=True) + eps)
    return centred * scale * weight.astype(np.float64) + bias.astype(np.float64)


def cross_entropy(logits: Array, labels: NDArray[np.int32]) -> Float:
    wide = logits.astype(np.float64)
    top = wide.max(axis=1)
    total = np.log(np.exp(wide - top[:, None]).sum(axis=1)) + top
    chosen = wide[np.arange(len(labels)), np.maximum(labels, 0)]
    return np.where(labels >= 0, total - chosen, 0.0)


def transpose(x: Array) -> Array:
    return x.T


def causal_conv1d(x: Array, weight: Array, bias: Array) -> Float:
    taps = weight.astype(np.float64)
    padded = np.pad(x.astype(np.float64), ((0, 0), (len(taps) - 1, 0), (0, 0)))
    tokens = x.shape[1]
    total = bias.astype(np.float64) + sum(tap * padded[:, k : k + tokens] for k, tap in enumerate(taps))
    return total / (1 + np.exp(-total))


def int8_product(a: Array, b: Array, a_scale: Array, b_scale: Array) -> Float:
    exact = a.astype(np.int64) @ b.astype(np.int64).T
    return exact * a_scale.astype(np.float64)[:, None] * b_scale.astype(np.float64)


def f8_product(a: Array, b: Array, a_scale: Array, b_scale: Array) -> Float:
    depth, columns = a.shape[1], b.shape[0]
    rows = np.repeat(a_scale.astype(np.float64), 128, axis=1)[:, :depth]
    blocks = np.repeat(np.repeat(b_scale.astype(np.float64), 128, axis=0), 128, axis=1)[:columns, :depth]
    return (a.astype(np.float64) * rows) @ (b.astype(np.float64) * blocks).T


def batched_product(x: Array, y: Array) -> Float:
    return x.astype(np.float64) @ y.astype(np.float64).transpose(0, 2, 1)


def top_k(x: Array, K: int) -> tuple[Array, NDArray[np.int32]]:
    index = np.argsort(-x.astype(np.float64), axis=1, kind="stable")[:, :K].astype(np.int32)
    return np.take_along_axis(x, index, axis=1), index


def csr_row_sum(x: Array, starts: NDArray[np.int32]) -> Float:
    before = np.concatenate(([0.0], np.cumsum(x.astype(np.float64))))
    return before[starts[1:]] - before[starts[:-1]]


def moe_gather(x: Array, order: NDArray[np.int32], K: int) -> Array:
    return x[order // K]


def silu_mul(gate: Array, up: Array) -> Float:
    wide = gate.astype(np.float64)
    return wide / (1 + np.exp(-wide)) * up.astype(np.float64)


def kv_update(k: Array, v: Array, slots: NDArray[np.int32], k_cache: Array, v_cache: Array) -> tuple[Array, Array]:
    keys, values = k_cache.copy(), v_cache.copy()
    keys[slots], values[slots] = k, v
    return keys, values


def merge_splits(parts: Array) -> Float:
    return parts.astype(np.float64).sum(axis=0)
