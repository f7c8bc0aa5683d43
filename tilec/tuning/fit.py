"""Selects a few of many measured candidates and fits a cost model for each: times at shapes in, weights out.

The cost of a candidate is a weighted sum of a constant (`start`) and its terms (expressions over extents, such as waves of
blocks times depth). The weights are a non-negative least-squares fit of relative errors. They are regularized toward weights
shared by all candidates, because few shapes are measured and the terms already depend on the tile sizes. The strength of the
regularization and the number of candidates minimize the regret in leave-one-out cross-validation over the shapes. The regret of
a shape is the relative slowdown of the candidate that the cost selects against the fastest candidate.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
PULLS: Final = (0.01, 1.0, 3.0, 10.0, 100.0)
"""Strengths of the regularization toward the shared weights, relative to the squared error of one average measured shape."""
ENOUGH: Final = 0.001
"""An additional artifact must reduce the mean regret by more than this."""


@dataclass(frozen=True, slots=True)
class Measured:
    """`times[candidate, shape]` in microseconds and `terms[candidate, shape, term]` (the first term is 1). At most one of the
    candidates with equal `alike` can be kept."""

    times: Array
    terms: Array
    alike: Sequence[object]


@dataclass(frozen=True, slots=True)
class Fit:
    """The `kept` candidates and the `weights` of each. `regret` (training) and `held_out` (cross-validation) are (mean, worst);
    `held_out` is None with fewer than three shapes."""

    kept: tuple[int, ...]
    weights: tuple[tuple[float, ...], ...]
    regret: tuple[float, float]
    held_out: tuple[float, float] | None


def fit(measured: Measured, keep: int) -> Fit:
    """The best fit with at most `keep` candidates; ValueError if nothing was measured."""
    if not measured.times.size:
        raise ValueError("no candidate was measured at all of the shapes")
    best = measured.times.min(axis=0)
    order = _order(measured, keep, best)
    shapes = measured.times.shape[1]
    tried: list[tuple[float, int, float]] = []
    for count in range(1, len(order) + 1):
        for pull in PULLS if shapes > 2 and count > 1 else PULLS[-1:]:
            regrets = _held_out(measured, order[:count], pull, best) if shapes > 2 else [_least(measured, order[:count], best)]
            tried.append((statistics.fmean(regrets), count, pull))
    least = min(regret for regret, _, _ in tried)
    _, count, pull = min((one for one in tried if one[0] <= least + ENOUGH), key=lambda one: (one[1], one[0]))
    kept = order[:count]
    weights = _weights(measured, kept, pull, range(shapes))
    own = _regrets(measured, kept, weights, range(shapes), best)
    errors_held_out = _held_out(measured, kept, pull, best) if shapes > 2 else None
    return Fit(
        tuple(kept), tuple(tuple(map(float, row)) for row in weights), (statistics.fmean(own), max(own)),
        None if errors_held_out is None else (statistics.fmean(errors_held_out), max(errors_held_out)),
    )  # fmt: skip


def _order(measured: Measured, keep: int, best: Array) -> list[int]:
    """Greedy selection: each next candidate minimizes the regret together with those before it."""
    chosen: list[int] = []
    current = np.full_like(best, np.inf)
    while len(chosen) < keep:
        taken = {measured.alike[one] for one in chosen}
        left = [one for one in range(len(measured.times)) if one not in chosen and measured.alike[one] not in taken]
        if not left:
            break
        regrets = [float(np.mean(np.minimum(current, measured.times[one]) / best)) for one in left]
        if chosen and float(np.mean(current / best)) - min(regrets) <= 0:
            break
        chosen.append(left[int(np.argmin(regrets))])
        current = np.minimum(current, measured.times[chosen[-1]])
    return chosen


def _least(measured: Measured, kept: Sequence[int], best: Array) -> float:
    """Mean regret of the best choice among `kept` at each shape: a lower bound."""
    times: Array = measured.times[list(kept)]
    ratios: Array = np.min(times, axis=0) / best
    return float(ratios.mean()) - 1


def _weights(measured: Measured, kept: Sequence[int], pull: float, shapes: Sequence[int]) -> Array:
    """Weights of each of `kept`, fitted to `shapes`."""
    rows = {one: measured.terms[one][list(shapes)] / measured.times[one][list(shapes), None] for one in kept}
    together = np.concatenate([rows[one] for one in kept])
    shared = _solve(together, np.ones(len(together)))
    found: list[Array] = []
    for one in kept:
        scale = np.sqrt(np.mean(rows[one] ** 2, axis=0) * pull)
        stacked = np.concatenate([rows[one], np.diag(scale)])
        found.append(_solve(stacked, np.concatenate([np.ones(len(rows[one])), scale * shared])))
    return np.array(found)


def _solve(matrix: Array, wanted: Array) -> Array:
    """Non-negative least squares, by enumeration of the subsets of weights that are not zero."""
    count = matrix.shape[1]
    size = np.sqrt(np.sum(matrix**2, axis=0))
    scaled = matrix / np.where(size > 0, size, 1)
    best, least = np.zeros(count), float(np.sum(wanted**2))
    for number in range(1, count + 1):
        for some in map(list, itertools.combinations(range(count), number)):
            part = np.linalg.lstsq(scaled[:, some], wanted, rcond=None)[0]
            error = float(np.sum((scaled[:, some] @ part - wanted) ** 2))
            if (part >= 0).all() and error < least:
                best, least = np.zeros(count), error
                best[some] = part
    return best / np.where(size > 0, size, 1)


def _regrets(measured: Measured, kept: Sequence[int], weights: Array, shapes: Sequence[int], best: Array) -> list[float]:
    found: list[float] = []
    for shape in shapes:
        costs = [float(measured.terms[one][shape] @ row) for one, row in zip(kept, weights, strict=True)]
        found.append(float(measured.times[kept[int(np.argmin(costs))]][shape] / best[shape]) - 1)
    return found


def _held_out(measured: Measured, kept: Sequence[int], pull: float, best: Array) -> list[float]:
    """The regret of each shape with weights fitted to all other shapes."""
    found: list[float] = []
    for shape in range(len(best)):
        others = [one for one in range(len(best)) if one != shape]
        found += _regrets(measured, kept, _weights(measured, kept, pull, others), [shape], best)
    return found
