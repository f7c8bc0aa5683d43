"""Attention and its gradients in NumPy and float64. Functions and parameters are named like kernels and theirs.

Queries are (B, T, HKV, G, D), keys and values (B, S, HKV, D), what each query has (B, HKV, G, T).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Float = NDArray[np.float64]
LOG2E = 1.4426950408889634

TOLERANCES = dict.fromkeys(
    ("attention", "attention_backward_q", "attention_backward_k", "attention_backward_v", "attention_backward_kv"), 1.6e-2
)
"""Of `tilec test`: probabilities and their gradients are rounded to the dtype of keys before they meet them."""


def _wide(array: Array) -> Float:
    return np.asarray(array).astype(np.float64)


def _scores(q: Array, k: Array, before: int, after: int, scale: float) -> Float:
    """Scores (B, HKV, G, T, S), -inf for keys that a query does not attend to."""
    queries, keys = q.shape[1], k.shape[1]
    at = np.arange(queries, dtype=np.int64) + keys - queries
    distance = np.arange(keys, dtype=np.int64)[None, :] - at[:, None]
    scores = np.einsum("bthgd,bshd->bhgts", _wide(q), _wide(k)) * scale
    return np.where((distance >= -before) & (distance <= after), scores, -np.inf)


def attention(q: Array, k: Array, v: Array, before: int, after: int, scale: float) -> tuple[Float, Float]:
    scores = _scores(q, k, before, after, scale)
    top = scores.max(axis=-1, keepdims=True, initial=-1e30)
    weights = np.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    found = total > 0
    shares = weights / np.where(found, total, 1)
    with np.errstate(divide="ignore"):
        log_sum = np.where(found, top + np.log(total), np.inf)
    return np.einsum("bhgts,bshd->bthgd", shares, _wide(v)), log_sum[..., 0]


def attention_rows(out: Array, dout: Array, lse: Array) -> Float:
    """(B, HKV, G, 2, T and some more): log-sum-exp times -log2(e), -inf past the end; sums of products, negated, 0 past it."""
    sums = np.einsum("bthgd,bthgd->bhgt", _wide(out), _wide(dout))
    more = [(0, 0)] * 3 + [(0, (sums.shape[-1] + 255) // 128 * 128 - sums.shape[-1])]
    return np.stack((np.pad(_wide(lse) * -LOG2E, more, constant_values=-np.inf), np.pad(-sums, more)), axis=-2)


def _gradients(
    q: Array, k: Array, v: Array, dout: Array, rows: Array, before: int, after: int, scale: float
) -> tuple[Float, Float, Float]:
    log_sum, own = (_wide(rows)[..., part, : q.shape[1], None] for part in (0, 1))
    weights = np.exp2(_scores(q, k, before, after, scale) * LOG2E + log_sum)
    grads = weights * (np.einsum("bthgd,bshd->bhgts", _wide(dout), _wide(v)) + own) * scale
    dq = np.einsum("bhgts,bshd->bthgd", grads, _wide(k))
    dk = np.einsum("bhgts,bthgd->bshd", grads, _wide(q))
    return dq, dk, np.einsum("bhgts,bthgd->bshd", weights, _wide(dout))


def attention_backward_q(
    q: Array, k: Array, v: Array, dout: Array, rows: Array, before: int, after: int, scale: float
) -> Float:
    return _gradients(q, k, v, dout, rows, before, after, scale)[0]


def attention_backward_kv(
    q: Array, k: Array, v: Array, dout: Array, rows: Array, before: int, after: int, scale: float
) -> tuple[Float, Float]:
    return _gradients(q, k, v, dout, rows, before, after, scale)[1:]


def attention_backward_k(
    q: Array, k: Array, v: Array, dout: Array, rows: Array, before: int, after: int, scale: float
) -> Float:
    return attention_backward_kv(q, k, v, dout, rows, before, after, scale)[0]


def attention_backward_v(q: Array, k: Array, dout: Array, rows: Array, before: int, after: int, scale: float) -> Float:
    return attention_backward_kv(q, k, k, dout, rows, before, after, scale)[1]


def attention_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    shape = dims["B"], dims["T"], dims["HKV"], dims["G"], dims["D"]
    keys = dims["B"], dims["S"], dims["HKV"], dims["D"]
    drawn: dict[str, NDArray[np.float64]] = {"q": rng.standard_normal(shape)}
    return drawn | {name: rng.standard_normal(keys) for name in ("k", "v")} | {"scale": dims["D"] ** -0.5}


def _saved(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    """What the forward takes and leaves, and a gradient of its result."""
    given = attention_inputs(rng, dims)
    out, lse = attention(given["q"], given["k"], given["v"], dims["before"], dims["after"], given["scale"])
    dout = rng.standard_normal(out.shape)
    return given | {"dout": dout, "rows": attention_rows(out, dout, lse)}


def attention_backward_q_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    return _saved(rng, dims)


def attention_backward_kv_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    return _saved(rng, dims)


def attention_backward_k_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    return _saved(rng, dims)


def attention_backward_v_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    return {name: array for name, array in _saved(rng, dims).items() if name != "v"}
