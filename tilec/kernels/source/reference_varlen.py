"""Attention of sequences of several lengths and its gradients in NumPy and float64. Functions and parameters are named like
kernels and theirs.

Queries are (T, HKV, G, D), keys and values (S, HKV, D), what each query has (HKV, G, T).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Float = NDArray[np.float64]
Integers = NDArray[np.integer]

TOLERANCES = {
    "attention_varlen": 1.6e-2, "attention_varlen_backward_q": 2.4e-2, "attention_varlen_backward_kv": 2.4e-2,
    "attention_scored": 1.6e-2, "attention_scored_backward_q": 2.4e-2, "attention_scored_backward_kv": 2.4e-2,
}  # fmt: skip
"""Of `tilec test`: probabilities and their gradients are rounded to the dtype of keys before they meet them."""
NEVER = 2**31 - 1
LOG2E = 1.4426950408889634


def _wide(array: Array) -> Float:
    return np.asarray(array).astype(np.float64)


def _side(own: Integers, others: Integers, rows: int, before: int, after: int, tile: int) -> tuple[Array, Array]:
    """Spans of the rows of one side, and of its tiles."""
    low, high, positions, numbers = np.zeros((4, -(-rows // tile) * tile), np.int64)
    for number, (begin, stop, first, last) in enumerate(zip(own[:-1], own[1:], others[:-1], others[1:], strict=True)):
        position: NDArray[np.int64] = np.arange(begin, stop, dtype=np.int64) - int(stop) + int(last)
        a, b = np.maximum(int(first), position - before), np.minimum(int(last), position + after + 1)
        low[begin:stop], high[begin:stop] = np.where(a < b, a, 0), np.where(a < b, b, 0)
        positions[begin:stop], numbers[begin:stop] = np.where(a < b, position, 0), np.where(a < b, number, 0)
    low, high, positions, numbers = (one.reshape(-1, tile) for one in (low, high, positions, numbers))
    seen = low < high
    blind = (~seen & (np.arange(low.size) < rows).reshape(low.shape)).any(axis=1)
    of_tiles = (
        np.where(seen, low, NEVER).min(axis=1),
        high.max(axis=1),
        np.where(blind, NEVER, low.max(axis=1)),
        np.where(seen, high, NEVER).min(axis=1),
    )
    return np.stack((low, high, positions, numbers), axis=1), np.stack(of_tiles, axis=1)


def attention_spans(
    queries: Integers, keys: Integers, T: int, S: int, before: int, after: int, ROWS: int
) -> tuple[Array, Array]:  # fmt: skip
    sides = _side(queries, keys, T, before, after, ROWS), _side(keys, queries, S, after, before, ROWS)
    spans, tiles = (np.concatenate(parts) for parts in zip(*sides, strict=True))
    return spans, tiles


def _scores(q: Array, k: Array, spans: Integers, scale: float) -> Float:
    """Scores (HKV, G, T, S), -inf for keys that a query does not attend to."""
    low, high = (spans[:, side].reshape(-1)[: len(q), None] for side in (0, 1))
    at = np.arange(len(k))[None, :]
    return np.where((at >= low) & (at < high), np.einsum("thgd,shd->hgts", _wide(q), _wide(k)) * scale, -np.inf)


def _attended(scores: Float, v: Array) -> tuple[Float, Float]:
    """What queries attend to, (T, HKV, G, D), and the log-sum-exp of scores (HKV, G, T, S)."""
    top = scores.max(axis=-1, keepdims=True, initial=-1e30)
    weights = np.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    found = total > 0
    with np.errstate(divide="ignore"):
        log_sum = np.where(found, top + np.log(total), np.inf)
    return np.einsum("hgts,shd->thgd", weights / np.where(found, total, 1), _wide(v)), log_sum[..., 0]


def attention_varlen(q: Array, k: Array, v: Array, spans: Integers, tiles: Integers, scale: float) -> tuple[Float, Float]:
    return _attended(_scores(q, k, spans, scale), v)


def _rows(out: Array, dout: Array, lse: Array) -> Float:
    """What `attention_rows` makes of one sequence, (HKV, G, 2, T and some more)."""
    sums = np.einsum("thgd,thgd->hgt", _wide(out), _wide(dout))
    more = [(0, 0)] * 2 + [(0, (sums.shape[-1] + 255) // 128 * 128 - sums.shape[-1])]
    return np.stack((np.pad(_wide(lse) * -LOG2E, more, constant_values=-np.inf), np.pad(-sums, more)), axis=-2)


def _gradients(
    q: Array, k: Array, v: Array, dout: Array, rows: Array, scores: Float, derivative: Float | float
) -> tuple[Float, Float, Float]:
    """From scores, and their derivative by products of queries and keys."""
    log_sum, own = (_wide(rows)[..., part, : q.shape[0], None] for part in (0, 1))
    weights = np.exp2(scores * LOG2E + log_sum)
    grads = weights * (np.einsum("thgd,shd->hgts", _wide(dout), _wide(v)) + own) * derivative
    dq = np.einsum("hgts,shd->thgd", grads, _wide(k))
    dk = np.einsum("hgts,thgd->shd", grads, _wide(q))
    return dq, dk, np.einsum("hgts,thgd->shd", weights, _wide(dout))


def attention_varlen_backward_q(
    q: Array, k: Array, v: Array, dout: Array, rows: Array, spans: Integers, tiles: Integers, scale: float
) -> Float:
    return _gradients(q, k, v, dout, rows, _scores(q, k, spans, scale), scale)[0]


def attention_varlen_backward_kv(
    q: Array, k: Array, v: Array, dout: Array, rows: Array, spans: Integers, tiles: Integers, scale: float
) -> tuple[Float, Float]:
    return _gradients(q, k, v, dout, rows, _scores(q, k, spans, scale), scale)[1:]


def attention_slopes(slopes: Array, spans: Integers) -> Float:
    """(HKV, G, tiles, ROWS): of the sequence of each row, times log2(e)."""
    return np.moveaxis(_wide(slopes)[np.clip(spans[:, 3], 0, len(slopes) - 1)], (0, 1), (2, 3)) * LOG2E


def _scored(
    q: Array, k: Array, spans: Integers, slopes: Array, scale: float, cap: float, score: int
) -> tuple[Float, Float | float]:  # fmt: skip
    """Scores with biases of distances (1) or a soft cap (2), and their derivatives by products."""
    scores, count = _scores(q, k, spans, scale), len(q)
    if score == 2:
        bent = np.where(np.isinf(scores), 0.0, np.tanh(scores / cap))
        return np.where(np.isinf(scores), -np.inf, cap * bent), scale * (1 - bent**2)
    index = spans[:, 2].reshape(-1)[:count, None].astype(np.int64)
    own = _wide(slopes).reshape(*slopes.shape[:2], -1)[..., :count, None] / LOG2E
    return scores - own * np.abs(np.arange(len(k))[None, :] - index), scale


def attention_scored(
    q: Array, k: Array, v: Array, spans: Integers, tiles: Integers, slopes: Array, scale: float, cap: float, SCORE: int
) -> tuple[Float, Float]:
    return _attended(_scored(q, k, spans, slopes, scale, cap, SCORE)[0], v)


def attention_scored_backward_q(
    q: Array, k: Array, v: Array, dout: Array, rows: Array, spans: Integers, tiles: Integers, slopes: Array, scale: float,
    cap: float, SCORE: int,
) -> Float:  # fmt: skip
    return _gradients(q, k, v, dout, rows, *_scored(q, k, spans, slopes, scale, cap, SCORE))[0]


def attention_scored_backward_kv(
    q: Array, k: Array, v: Array, dout: Array, rows: Array, spans: Integers, tiles: Integers, slopes: Array, scale: float,
    cap: float, SCORE: int,
) -> tuple[Float, Float]:  # fmt: skip
    return _gradients(q, k, v, dout, rows, *_scored(q, k, spans, slopes, scale, cap, SCORE))[1:]


def offsets(rng: np.random.Generator, sequences: int, rows: int) -> NDArray[np.int32]:
    """Where each sequence begins, and the end of the last: some are empty, and some rows may follow."""
    cuts: NDArray[np.int64] = np.sort(rng.integers(0, rows + 1, sequences - 1))
    return np.concatenate(([0], cuts, [rows - rows // 19])).clip(max=rows - rows // 19).astype(np.int32)


def attention_spans_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    return {name: offsets(rng, dims["B"], dims[rows]) for name, rows in (("queries", "T"), ("keys", "S"))}


def attention_varlen_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    """Of up to five sequences, causal or with a window of 20 keys and 3 after."""
    count, rows = int(rng.integers(1, 6)), dims.get("ROWS") or dims["BM"]
    given = {"queries": offsets(rng, count, dims["T"]), "keys": offsets(rng, count, dims["S"])}
    before, after = ((1 << 24, 0), (19, 3))[int(rng.integers(2))]
    spans, tiles = attention_spans(**given, T=dims["T"], S=dims["S"], before=before, after=after, ROWS=rows)
    keys = dims["S"], dims["HKV"], dims["D"]
    return {
        "q": rng.standard_normal((dims["T"], dims["HKV"], dims["G"], dims["D"])),
        "k": rng.standard_normal(keys),
        "v": rng.standard_normal(keys),
        "spans": spans.astype(np.int32),
        "tiles": tiles.astype(np.int32),
        "scale": dims["D"] ** -0.5,
    }


def _saved(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    """What the forward takes and leaves, and a gradient of its result."""
    given = attention_varlen_inputs(rng, dims)
    out, lse = attention_varlen(**given)
    dout = rng.standard_normal(out.shape)
    return given | {"dout": dout, "rows": _rows(out, dout, lse)}


def attention_varlen_backward_q_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    return _saved(rng, dims)


def attention_varlen_backward_kv_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    return _saved(rng, dims)


def attention_slopes_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    given = attention_spans_inputs(rng, {**dims, "B": dims["N"]})
    numbers = {name: dims[name] for name in ("T", "S", "ROWS")}
    return {"spans": attention_spans(**given, **numbers, before=1 << 24, after=0)[0].astype(np.int32)}


def attention_scored_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    """As of `attention_varlen`, of slopes and a cap that change most scores."""
    given = attention_varlen_inputs(rng, dims)
    slopes = rng.uniform(0, 0.3, (5, dims["HKV"], dims["G"]))
    return given | {"slopes": attention_slopes(slopes, given["spans"]), "cap": 1.5}


def _saved_scored(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    given = attention_scored_inputs(rng, dims)
    out, lse = attention_scored(**given, SCORE=dims["SCORE"])
    dout = rng.standard_normal(out.shape)
    return given | {"dout": dout, "rows": _rows(out, dout, lse)}


def attention_scored_backward_q_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    return _saved_scored(rng, dims)


def attention_scored_backward_kv_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    return _saved_scored(rng, dims)
