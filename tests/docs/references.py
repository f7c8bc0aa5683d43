"""NumPy references for the kernels of the pages, by kernel, so that the pages can stay short."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

Array = Any


def wide(x: Array) -> Array:
    return x.astype(np.float64)


def copy_rows(x: Array) -> Array:
    return wide(x) * 2


def scale(x: Array, factor: float) -> Array:
    return wide(x) * factor


def shares(x: Array) -> Array:
    return wide(x) / wide(x).sum(axis=1, keepdims=True)


def split_heads(qkv: Array) -> Array:
    return qkv[:, : qkv.shape[1] // 3]


def sum_ahead(x: Array, WINDOW: int) -> Array:
    padded = np.concatenate((x, np.zeros(WINDOW, x.dtype)))
    return np.sum([padded[k : k + len(x)] for k in range(WINDOW)], axis=0)


def window_sum(x: Array, count: int, scale: float) -> Array:
    return wide(x)[:, :count].sum(axis=1) * scale


def take_rows(table: Array, ids: Array) -> Array:
    return table[ids]


def column_sums(x: Array) -> Array:
    return wide(x).sum(axis=0)


def shift(x: Array) -> Array:
    return np.concatenate([[0], x[:-1]])


def pick(x: Array, columns: Array) -> Array:
    return np.take_along_axis(x, columns, axis=1)


def put_rows(x: Array, slots: Array, cache: Array) -> Array:
    made = cache.copy()
    made[slots] = x
    return made


def add_into(x: Array, total: Array) -> Array:
    return wide(x) + total


def two_passes(x: Array) -> Array:
    e = np.exp(wide(x))
    return e - e.mean(axis=1, keepdims=True)


def histogram(x: Array, counts: Array) -> Array:
    return counts + np.bincount(x, minlength=len(counts))


def embedding_gradient(grad: Array, ids: Array, table: Array) -> Array:
    total = table.astype(np.float64)
    np.add.at(total, ids, grad)
    return total


def compact(x: Array, count: Array, out: Array) -> tuple[Array, Array]:
    """In the order of the interpreter."""
    kept = x[x > 0]
    positions, found = count[0] + np.arange(len(kept)), out.copy()
    found[positions[positions < len(out)]] = kept[positions < len(out)]
    return count + len(kept), found


def causal_mask(N: int) -> Array:
    return np.tril(np.ones((N, N)))


def transpose(x: Array) -> Array:
    return x.T


def pack_positive(x: Array, packed: Array) -> tuple[Array, Array]:
    found, after = x[x > 0], packed.copy()
    after[: len(found)] = found
    return after, np.array([len(found)])


def search(x: Array, wanted: Array) -> Array:
    """Of elements in any order: the steps of the search."""
    found: list[int] = []
    for w in wanted:
        low, high = 0, len(x)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if x[middle] < w else (low, middle)
        found.append(low)
    return np.array(found)


def decode(codes: Array, table: Array) -> Array:
    return wide(table)[codes & 15]


def recurrence(decay: Array, x: Array) -> Array:
    states = wide(x)
    for j in range(1, x.shape[1]):
        states[:, j] += wide(decay)[:, j] * states[:, j - 1]
    return states


def kept(x: Array, starts: Array, out: Array, BLOCK: int) -> Array:
    made = out.copy()
    for tile in range(len(starts) - 1):
        found = x[tile * BLOCK : (tile + 1) * BLOCK]
        found = found[found > 0][: starts[tile + 1] - starts[tile]]
        made[starts[tile] : starts[tile] + len(found)] = found
    return made


def largest(x: Array, K: int) -> tuple[Array, Array]:
    order = np.argsort(-wide(x), axis=1, kind="stable")[:, :K]
    return np.take_along_axis(wide(x), order, 1), order


def int_product(a: Array, b: Array) -> Array:
    return a.astype(np.int64) @ b.astype(np.int64).T


def online_max(x: Array) -> tuple[Array, Array]:
    top = wide(x).max(axis=1)
    return top, np.exp(wide(x) - top[:, None]).sum(axis=1)


def persistent_scale(x: Array) -> Array:
    return wide(x) * 2


def first_above(x: Array, limit: float, BLOCK: int) -> Array:
    above = x > limit
    return np.where(above.any(axis=1), above.argmax(axis=1) // BLOCK, -1)


def ragged_mean(x: Array, lengths: Array) -> Array:
    return np.array([wide(row[:length]).sum() / max(length, 1) for row, length in zip(x, lengths, strict=True)])


def relu_or_copy(x: Array, RELU: bool) -> Array:
    return np.maximum(x, 0) if RELU else x


def gelu_rows(x: Array) -> Array:
    return 0.5 * wide(x) * (1 + np.tanh(0.7978845608 * (wide(x) + 0.044715 * wide(x) ** 3)))


def row_mean(x: Array) -> Array:
    return wide(x).mean(axis=1)


def smooth(x: Array, weight: Array) -> Array:
    return np.convolve(wide(x), wide(weight)[::-1])[: len(x)]


def label_logit(logits: Array, labels: Array) -> Array:
    return np.take_along_axis(logits, labels[:, None], axis=1)[:, 0]


def group_sum(x: Array, starts: Array) -> Array:
    return np.array([wide(x[begin:end]).sum() for begin, end in itertools.pairwise(starts)])


def top_values(x: Array, K: int) -> tuple[Array, Array]:
    at = np.argsort(-x, axis=1, kind="stable")[:, :K]
    return np.take_along_axis(x, at, axis=1), at


def batched_linear(a: Array, w: Array) -> Array:
    return wide(a) @ wide(w).transpose(0, 2, 1)


def grouped_scores(q: Array, keys: Array) -> Array:
    heads = wide(q).reshape(len(keys), -1, q.shape[1])
    return (heads @ wide(keys).transpose(0, 2, 1)).reshape(len(q), -1)


def scale_groups(w: Array, scales: Array) -> Array:
    """`w`: bytes of two signed elements, the first in the low half."""
    halves = np.stack([w & 15, w >> 4], axis=-1).reshape(len(w), -1).astype(np.int64)
    return (halves - 16 * (halves > 7)) * np.repeat(wide(scales), 128, axis=1)
