"""Compares what a launch wrote with what it must write: stored elements and an `Expected` go in, the first wrong one comes
out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.qualify.recipe import widened
from tilec.qualify.side_file import Expected
from tilec.target.dtypes import DTYPES

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Wrong:
    """The first wrong element of a result: its index, what it is and must be, the tolerance, and how many are wrong."""

    tensor: str
    index: tuple[int, ...]
    got: float
    expected: float
    tolerance: float
    count: int

    def __str__(self) -> str:
        position = ", ".join(map(str, self.index))
        allowed = f" (tolerance {self.tolerance:.3g})" if self.tolerance else ""
        return (
            f"`{self.tensor}[{position}]` is {self.got:.8g}, not {self.expected:.8g}{allowed}; {self.count} elements are wrong"
        )


class NotComparable(ValueError):
    """The side file does not fit the launch."""


def compared(expected: Expected, found: Array, shape: tuple[int, ...]) -> Wrong | None:
    """The first wrong element; None if all are right. `found` are all elements of the tensor in row-major order, as stored.
    NotComparable if `expected` is not about such a tensor."""
    numbers = expected.positions()
    if numbers.size and int(numbers[-1]) >= found.size:
        raise NotComparable(f"the side file expects element {int(numbers[-1])} of `{expected.tensor}`, which has {found.size}")
    if expected.whole and numbers.size != found.size:
        raise NotComparable(f"the side file expects {numbers.size} elements of `{expected.tensor}`, which has {found.size}")
    got, want = found[numbers], expected.bits
    if not DTYPES[expected.dtype].is_float:
        limit = np.zeros(numbers.size)
        bad = got != want
        seen, truth = got.astype(np.float64), want.astype(np.float64)
    else:
        seen, truth = widened(expected.dtype, got), widened(expected.dtype, want)
        with np.errstate(invalid="ignore"):
            limit = expected.relative * np.abs(truth) + expected.absolute
            near = np.abs(seen - truth) <= limit
        finite = np.isfinite(truth)
        bad = ~np.where(finite, near, (seen == truth) | (np.isnan(seen) & np.isnan(truth)))
    wrong = np.flatnonzero(bad)
    if not wrong.size:
        return _unwritten(expected, found, shape)
    first = int(wrong[0])
    index = tuple(int(part) for part in np.unravel_index(int(numbers[first]), shape))
    return Wrong(expected.tensor, index, float(seen[first]), float(truth[first]), float(limit[first]), int(wrong.size))


def _unwritten(expected: Expected, found: Array, shape: tuple[int, ...]) -> Wrong | None:
    """Of a sampled result, the first element that is NaN though all expected ones are finite: it was not written, or is
    wrong."""
    if expected.whole or not DTYPES[expected.dtype].is_float or not np.isfinite(widened(expected.dtype, expected.bits)).all():
        return None
    nan = np.flatnonzero(_is_nan(expected.dtype, found))
    if not nan.size:
        return None
    index = tuple(int(part) for part in np.unravel_index(int(nan[0]), shape))
    return Wrong(expected.tensor, index, float("nan"), float("nan"), 0.0, int(nan.size))


def _is_nan(dtype: str, found: Array) -> NDArray[np.bool_]:
    if dtype == "bf16":
        return found.view(np.uint16) & np.uint16(0x7FFF) > np.uint16(0x7F80)
    return np.isnan(found) if found.dtype.kind == "f" else np.isnan(widened(dtype, found))


def differs(first: Array, again: Array) -> int | None:
    """Number of the first element whose bits differ; None if all are equal."""
    unsigned = f"uint{8 * first.itemsize}"
    left, right = first.view(unsigned), again.view(unsigned)
    if np.array_equal(left, right):
        return None
    return int(np.flatnonzero(left != right)[0])
