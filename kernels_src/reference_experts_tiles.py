"""What the kernels of a prompt's experts compute, in float64 NumPy, as `reference` does for others.

Integers are defined by the choices of experts alone: places are those of a stable sort of all choices, and what
`experts_gather` reads besides is not looked at."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Wide = NDArray[np.float64]
Integers = NDArray[np.int32]


def _wide(array: Array) -> Wide:
    return np.asarray(array).astype(np.float64)


def experts_sort(experts: Array, X: int, BLOCK: int) -> tuple[Integers, Integers, Integers, Integers]:
    """Order, ranks, counts and begins of each chunk of `BLOCK` choices; (T, C) -> (P, BLOCK), (P, BLOCK), (X, P), (X, P). The
    last chunk is filled up with choices that count on from the ranks of the last expert, and are not among its counts."""
    chosen = np.asarray(experts).ravel()
    chunks = -(-chosen.size // BLOCK)
    padded = np.full(chunks * BLOCK, X)
    padded[: chosen.size] = chosen
    order, ranks = np.zeros((chunks, BLOCK), np.int32), np.zeros((chunks, BLOCK), np.int32)
    counts = np.zeros((X, chunks), np.int32)
    for p, chunk in enumerate(padded.reshape(chunks, BLOCK)):
        order[p] = np.argsort(chunk, kind="stable")
        seen = np.zeros(X, np.int32)
        for i, expert in enumerate(chunk):
            ranks[p, i] = seen[min(expert, X - 1)]
            seen[min(expert, X - 1)] += 1
        counts[:, p] = np.bincount(chunk, minlength=X)[:X]
    return order, ranks, counts, (np.cumsum(counts, axis=0) - counts).astype(np.int32)


def experts_tiles(counts: Array, BM: int, S: int) -> tuple[Integers, Integers]:
    """The first row of each expert's choices in each chunk, and the expert of each of `S` tiles of `BM` rows, X for those of
    nobody; (X, P) -> (X, P), (S,)."""
    experts = len(counts)
    heights = [-(-int(total) // BM) for total in counts.sum(axis=1)]
    tiles = np.full(S, experts, np.int32)
    used = np.repeat(np.arange(experts), heights)
    tiles[: used.size] = used[:S]
    first = (np.cumsum(heights) - heights)[:, None] * BM
    return (first + np.cumsum(counts, axis=1) - counts).astype(np.int32), tiles


def slots_of(experts: Array, X: int, BM: int) -> Integers:
    """The row of each choice in the order of experts, where each expert begins a tile of `BM` rows; (T, C) -> (T, C)."""
    chosen = np.asarray(experts).ravel()
    places = np.zeros(chosen.size, np.int32)
    row = 0
    for expert in range(X):
        own = np.flatnonzero(chosen == expert)
        places[own] = row + np.arange(own.size)
        row += -(-own.size // BM) * BM
    return places.reshape(np.asarray(experts).shape)


def experts_gather(x: Array, experts: Array, *rest: Any) -> tuple[Wide, Integers]:
    """Rows of the tokens that chose an expert, in the order of experts, rows of nobody 0; and the row of each choice. The last
    three of `rest` are X, BM and S; (T, H), (T, C) -> (S * BM, H), (T, C)."""
    X, BM, S = rest[-3:]
    places = slots_of(experts, X, BM)
    out = np.zeros((S * BM, x.shape[1]))
    for token, row in enumerate(places):
        out[row] = _wide(x)[token]
    return out, places


def experts_matmul(a: Array, tiles: Array, b: Array) -> Wide:
    """Rows of tile m times the matrix of expert `tiles[m]`, 0 for tiles of nobody; (R, K), (S,), (X, N, K) -> (R, N)."""
    rows = len(a) // len(tiles)
    out = np.zeros((len(a), b.shape[1]))
    for m, expert in enumerate(tiles):
        if expert < len(b):
            out[m * rows : (m + 1) * rows] = _wide(a[m * rows : (m + 1) * rows]) @ _wide(b[expert]).T
    return out


experts_matmul_few = experts_matmul


def experts_matmul_silu_mul(a: Array, tiles: Array, b: Array) -> Wide:
    """`silu(gate) * up` of both products of `experts_matmul`; (R, K), (S,), (X, 2, I, K) -> (R, I)."""
    gate, up = (experts_matmul(a, tiles, b[:, half]) for half in (0, 1))
    return gate / (1.0 + np.exp(-gate)) * up


experts_matmul_silu_mul_few = experts_matmul_silu_mul


def experts_sum(y: Array, places: Array, weights: Array) -> Wide:
    """The weighted sum of each token's rows; (R, H), (T, C), (T, C) -> (T, H)."""
    return np.einsum("tc,tch->th", _wide(weights), _wide(y)[places])


def experts_combine(y: Array, places: Array, weights: Array, residual: Array, weight: Array, eps: float) -> tuple[Wide, Wide]:
    """The residual plus the weighted sum of each token's rows, and its norm, which sees the sum as it is stored; (R, H),
    (T, C), (T, C), (T, H), (H,) -> (T, H), (T, H)."""
    total = _wide(residual) + np.einsum("tc,tch->th", _wide(weights), _wide(y)[places])
    stored = _wide(total.astype(np.asarray(residual).dtype))
    return total, stored / np.sqrt(np.mean(stored * stored, axis=-1, keepdims=True) + eps) * _wide(weight)
