"""Fits constants of the model of time to measured rows, by Gauss-Newton steps on the logarithms of the times.

Every constant is fitted as its logarithm, so it stays positive. Residuals beyond `ROBUST` count less (Huber, "Robust Estimation
of a Location Parameter", 1964), so that rows that the model does not explain hardly move it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ci.bench.judges.time_model_rows import ATTENTION, Row
from tilec.cost_model.calibration import FITTED, Calibration
from tilec.cost_model.cards import CARDS
from tilec.tuning.prediction import predict

Vector = NDArray[np.float64]
ROBUST: Final = 0.08
STEPS: Final = 15
DIFFERENCE: Final = 2e-3
"""Of the logarithm of a constant, for a derivative."""
LONGEST: Final = 0.4
"""Change of the logarithm of a constant in one step."""
WEIGHT: Final = 3.0
"""Of a row of attention, of which there are few."""
PULL: Final = 0.05
"""Toward the start, per unit of the logarithm: a constant that the rows leave open stays where it was."""
START: Final = Calibration(
    start=0.5e-6, start_waiting=1e-6, start_resident=0.5e-6, latency=0.7e-6, next_block=2000, tensor_share=0.9, gap=25,
    copy_issue=125, dependent=0.7, reduction=1000, store_cycles=2.5, tail=1000, contention=3, mac_joules=2.3e-12,
)  # fmt: skip
"""Round values of the right size, by eye from some rows of each kind."""


def microseconds_of(row: Row, known: Calibration) -> float:
    """The predicted microseconds of a row."""
    found = predict(row.prepared, CARDS[row.card], known, overlapped=row.overlapped)
    return sum(one.microseconds for one in found)


def fitted(rows: Sequence[Row]) -> Calibration:
    """The constants of `FITTED` that suit the rows best."""
    begin = point = np.array([math.log(getattr(START, name)) for name in FITTED])
    damping = 1e-2

    def errors(point: Vector) -> Vector:
        return np.concatenate([_errors(rows, _at(point)), PULL * (point - begin)])

    error = errors(point)
    for _ in range(STEPS):
        columns = [errors(point + DIFFERENCE * unit) for unit in np.eye(point.size)]
        slope = np.stack([(column - error) / DIFFERENCE for column in columns], axis=1)
        before = _cost(error)
        while damping < 1e4:
            step = _step(slope, error, damping)
            after = errors(point + step)
            if _cost(after) < before:
                point, error, damping = point + step, after, max(damping / 5, 1e-6)
                break
            damping *= 5
        print(f"cost {before:.4f} -> {_cost(error):.4f}", flush=True)
        if before - _cost(error) < 2e-4 * before:
            break
    return _at(point)


def _at(point: Vector) -> Calibration:
    return replace(START, **{name: math.exp(value) for name, value in zip(FITTED, point, strict=True)})


def rounded(known: Calibration) -> Calibration:
    """The same constants with three digits."""
    return replace(known, **{name: float(f"{getattr(known, name):.3g}") for name in FITTED})


def _errors(rows: Sequence[Row], known: Calibration) -> Vector:
    ratios = np.array([microseconds_of(row, known) / row.measured for row in rows])
    return np.sqrt([WEIGHT if row.source == ATTENTION else 1.0 for row in rows]) * np.log(ratios)


def _step(slope: Vector, error: Vector, damping: float) -> Vector:
    weights = np.minimum(1.0, ROBUST / np.maximum(np.abs(error), 1e-9))
    curvature = (slope * weights[:, None]).T @ slope
    damped = curvature + damping * np.diag(np.diag(curvature) + 1e-6)
    step = np.asarray(np.linalg.solve(damped, slope.T @ (weights * error)), dtype=np.float64)
    return np.clip(-step, -LONGEST, LONGEST)


def _cost(error: Vector) -> float:
    size = np.abs(error)
    return float(np.where(size < ROBUST, error**2 / 2, ROBUST * (size - ROBUST / 2)).sum())
