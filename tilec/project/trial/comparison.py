"""Compares a result of a launch with what it must be: arrays and a tolerance go in, the largest error comes out."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tilec.artifact.records import TensorSpec
from tilec.ir.types import DTYPES

Array = NDArray[Any]

OUTLIER: Final = 1000
"""Elements above this multiple of the median magnitude are excluded from the root mean square."""
VAGUE: Final = 2.0**-6
"""A bound above this fraction of the element, or of the usual size of the tensor, would accept almost any result: it counts for
nothing."""


@dataclass(frozen=True, slots=True)
class Written:
    """A tensor that the kernel wrote, with a printable `summary`. With a reference, `error` is the largest difference in units
    of the tolerance (correct if at most 1), at the element `worst` with the values `found` and `expected`; `not_finite` is the
    number of results that are infinite or NaN where the reference is finite (`worst` is then the first of them), `undefined`
    that of NaN and +inf in the reference."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    summary: str
    error: float | None = None
    worst: tuple[int, ...] = ()
    found: float = 0.0
    expected: float = 0.0
    not_finite: int = 0
    undefined: int = 0


def right(one: Written) -> bool:
    """Whether a result is within its tolerance, or was compared with nothing."""
    return one.error is None or one.error <= 1


def written_json(one: Written) -> dict[str, Any]:
    """A result as plain data, with floats that are not finite as strings, which JSON lacks."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in asdict(one).items()
    }


def summary(spec: TensorSpec, array: Array) -> Written:
    """The range and mean of a result, without a comparison."""
    wide = array.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    text = f"{finite.min():.6g} to {finite.max():.6g}, mean {finite.mean():.6g}" if finite.size else "nothing finite"
    not_finite = wide.size - finite.size
    return Written(spec.name, spec.dtype, array.shape, text + (f", {not_finite} not finite" if not_finite else ""))


def _typical(expected: Array) -> float:
    """The root mean square of finite elements without outliers, so that a few large elements do not loosen the tolerance."""
    sizes = np.abs(expected[np.isfinite(expected)])
    middle = float(np.median(sizes)) if sizes.size else 0.0
    usual = sizes[sizes <= OUTLIER * middle] if middle else sizes
    return float(np.sqrt(np.mean(usual * usual))) if usual.size else 0.0


def compared(
    spec: TensorSpec, array: Array, truth: Array, tolerance: tuple[float | None, float | None], bound: Array | None = None,
    least: float = 0.0,
) -> Written | str:  # fmt: skip
    """The largest error of a result in units of the tolerance, or a text that says why it cannot be compared. `bound`: how far
    each element may be off by rounding (`tilec.interpreter.error_bounds`), which is allowed too. `least`: the least
    relative tolerance if none is given (`tilec.project.trial.coarse`)."""
    seen = summary(spec, array)
    if truth.shape != array.shape:
        return f"`{spec.name}` has shape {array.shape}, the reference's {truth.shape}"
    if np.iscomplexobj(truth):
        return f"the reference of `{spec.name}` is complex"
    if array.size == 0:
        return seen
    found, expected = array.astype(np.float64), truth.astype(np.float64)
    relative, absolute = tolerance
    with np.errstate(all="ignore"):
        relative = max(DTYPES[spec.dtype].tolerance, least) if relative is None else relative
        if absolute is None:
            absolute = relative * _typical(expected)
        allowed = absolute + relative * np.abs(expected)
        if bound is not None:
            telling = bound <= VAGUE * np.maximum(np.abs(expected), _typical(expected))
            allowed = np.where(telling, np.maximum(allowed, bound), allowed)
        comparable = np.isfinite(found) & np.isfinite(expected) & (allowed > 0)
        error = np.where(comparable, np.abs(found - expected) / np.where(comparable, allowed, 1.0), np.inf)
        same = (found == expected) | (np.isnan(found) & np.isnan(expected))
        if not DTYPES[spec.dtype].is_float:  # float64 cannot represent all 64-bit integers
            same = array == truth
        error = np.where(same, 0.0, error)
    missing = np.isfinite(expected) & ~np.isfinite(found)
    undefined = int(np.count_nonzero(np.isnan(expected) | (expected == np.inf))) if truth.dtype.kind == "f" else 0
    worst = np.unravel_index(int(np.argmax(missing if missing.any() else error)), error.shape)
    return Written(
        spec.name, spec.dtype, array.shape, seen.summary, float(error[worst]), tuple(map(int, worst)), float(found[worst]),
        float(expected[worst]), int(np.count_nonzero(missing)), undefined,
    )  # fmt: skip
