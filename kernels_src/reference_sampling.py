"""What the kernels of sampling compute, in float64 (`sample_scores` has the columns of a row's parameters)."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Wide = NDArray[np.float64]

GROUP: Final = 32
COUNT: Final = (1 << 24) - 1
IN_PROMPT, EARLY, BARRED = 1 << 24, 1 << 25, 1 << 26
NO_TOKEN: Final = 2147483647
WORD: Final = 0xFFFFFFFF


def row_scores(logits: Array, state: Array, bias: Array, numbers: Array, factors: Array, positions: Array) -> Wide:
    """Logits after penalties, bias and bars of rows that ask for that, (B, V); infinite where a logit is NaN or infinite."""
    scores = logits.astype(np.float64)
    wrong = np.isnan(scores) | np.isposinf(scores)
    for row in np.flatnonzero(numbers[:, 7] & 1):
        _, repetition, frequency, presence = map(float, factors[row])
        x: Wide = scores[row]
        marks: NDArray[np.int32] = state[row]
        count = marks & COUNT
        x = np.where(marks & (COUNT | IN_PROMPT) != 0, np.where(x > 0, x / repetition, x * repetition), x)
        x = x - frequency * count - presence * (count > 0) + bias[row]
        bars = BARRED | EARLY if positions[row] - numbers[row, 5] < numbers[row, 6] else BARRED
        scores[row] = np.where(marks & bars != 0, -np.inf, x)
    return np.where(wrong, np.inf, scores)


def sample_maxima(logits: Array, state: Array, bias: Array, numbers: Array, factors: Array, positions: Array) -> Wide:
    """The greatest score of each group of 32 tokens, (B, cdiv(V, 32))."""
    return _group_maxima(row_scores(logits, state, bias, numbers, factors, positions))


def sample_rows(
    logits: Array, maxima: Array, state: Array, bias: Array, numbers: Array, factors: Array, positions: Array
) -> NDArray[np.int32]:
    """The token of each row, (B,). NotImplementedError for maxima that are not of these scores, and for parameters that no
    engine sends."""
    scores = row_scores(logits, state, bias, numbers, factors, positions)
    with np.errstate(invalid="ignore"):
        same = np.allclose(_group_maxima(scores), maxima.astype(np.float64), rtol=1e-5, atol=1e-5)
    shares = (numbers[:, 1] > 0) & (numbers[:, 1] <= 1 << 30) & (numbers[:, 2] >= 0) & (numbers[:, 2] <= 1 << 30)
    if not same or not (shares & (numbers[:, 0] > 0) & (factors[:, :2] > 0).all(axis=1)).all():
        raise NotImplementedError("it takes maxima as `sample_maxima` leaves them, and parameters that the engine allows")
    return np.array([_drawn(*row) for row in zip(scores, numbers, factors, positions, strict=True)], np.int32)


def sample_report(
    logits: Array, token: Array, numbers: Array, state: Array, bias: Array, maxima: Array, top: int
) -> tuple[Array, Wide, Array, Wide]:
    """`state` with the tokens counted, `maxima` of the logits of rows that ask for probabilities, and of these the most likely
    tokens, (B, top), and the logarithms of the probabilities of the token and of theirs, (B, top + 1)."""
    rows, vocabulary = logits.shape
    counted, greatest = state.copy(), maxima.astype(np.float64)
    tokens, logprobs = np.full((rows, top), -1, np.int32), np.zeros((rows, top + 1))
    for row in range(rows):
        if numbers[row, 7] & 1 and 0 <= token[row] < vocabulary:
            counted[row, token[row]] += 1
        if numbers[row, 7] & 2:
            wide = logits[row].astype(np.float64)
            greatest[row] = _group_maxima(wide[None])[0]
            order = np.argsort(-wide, kind="stable")[:top]
            norm = wide.max() + np.log(np.exp(wide - wide.max()).sum())
            tokens[row, : order.size], logprobs[row, 1 : order.size + 1] = order, wide[order] - norm
            logprobs[row, 0] = wide[np.clip(token[row], 0, vocabulary - 1)] - norm
    return counted, greatest, tokens, logprobs


def _group_maxima(scores: Wide) -> Wide:
    rows, vocabulary = scores.shape
    padded = np.full((rows, -(-vocabulary // GROUP) * GROUP), -np.inf)
    padded[:, :vocabulary] = scores
    return padded.reshape(rows, -1, GROUP).max(axis=2)


def _drawn(scores: Wide, numbers: Array, factors: Array, position: int) -> int:
    """The token of one row."""
    if not np.isfinite(scores.max()):
        return NO_TOKEN
    top_k, top_p, min_p, seed_low, seed_high, first = map(int, numbers[:6])
    order = np.argsort(-scores, kind="stable")
    weights = np.exp((scores[order] - scores[order[0]]) / float(factors[0]))[:top_k]
    before = np.cumsum(weights) - weights
    kept = (before < top_p / (1 << 30) * weights.sum()) & (weights >= min_p / (1 << 30)) & (weights > 0)
    kept[0] = True
    running = np.cumsum(weights[kept])
    goal = _uniform(int(position) - first, seed_low & WORD, seed_high & WORD) * running[-1]
    return int(order[min(int((running <= goal).sum()), running.size - 1)])


def _uniform(step: int, low: int, high: int) -> float:
    """The first word of Philox-4x32-10 at counter (step, 0, 0, 0) under a key, as a multiple of 2^-24."""
    c0, c1, c2, c3 = step & WORD, 0, 0, 0
    for _ in range(10):
        first, second = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (second >> 32) ^ c1 ^ low, second & WORD, (first >> 32) ^ c3 ^ high, first & WORD
        low, high = (low + 0x9E3779B9) & WORD, (high + 0xBB67AE85) & WORD
    return (c0 >> 8) / (1 << 24)
