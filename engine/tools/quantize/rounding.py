"""A weight rounded to a format, strip by strip on all cores, and the errors that rounding makes.

Weights are (N, K): N outputs (rows), K inputs (columns), in bf16 or f16. A strip is some of the rows, in f32.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

Strip = NDArray[np.float32]
Arrays = Mapping[str, NDArray[Any]]
"""Tensors of a module by the ends of their names, such as `weight_scale`."""

STRIP: Final = 1 << 20
"""Elements of a strip, if one of the least height has no more."""

SMALLEST_SCALE: Final = np.float32(2.0**-126)
"""Scales are not below the smallest normal number of f32, which processors may read as zero."""


LARGEST_WEIGHT: Final = 1e38
"""Above it, the product of a rounded scale and a code could overflow f32."""


class NoWeight(ValueError):
    """A weight that is NaN, infinite or above `LARGEST_WEIGHT`; the message says what it is, and where."""


class Format(Protocol):
    """A published format of quantised weights."""

    @property
    def height(self) -> int:
        """Rows of a strip are a multiple of it, but for the last."""
        ...

    def problem(self, shape: tuple[int, int]) -> tuple[str, str] | None:
        """Why a weight of this shape cannot be stored, and what to do instead; None if it can."""
        ...

    def stored(self, shape: tuple[int, int], dtype: np.dtype[Any]) -> Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """Dtype and shape of each tensor of a module whose weight has this shape and dtype, by the end of its name."""
        ...

    def rounded(self, strip: Strip, dtype: np.dtype[Any]) -> tuple[Arrays, Strip]:
        """Those tensors for a strip of finite weights, and the values that they stand for. Tensors that are not split by rows
        are left out."""
        ...

    def whole(self, shape: tuple[int, int]) -> Arrays:
        """The tensors that are not split by rows."""
        ...

    def config(self, skipped: Sequence[str]) -> Mapping[str, object]:
        """`quantization_config` for a model whose modules `skipped` keep 16 bits."""
        ...


@dataclass(frozen=True, slots=True)
class Errors:
    """Sums of squares of weights and of their errors, and the largest of each; in f64. If a weight was calibrated, also the
    sums of squares of its outputs for the calibration text and of their errors."""

    weights: float = 0.0
    errors: float = 0.0
    largest_weight: float = 0.0
    largest_error: float = 0.0
    outputs: float = 0.0
    output_errors: float = 0.0

    def __add__(self, other: Errors) -> Errors:
        return Errors(
            self.weights + other.weights, self.errors + other.errors,
            max(self.largest_weight, other.largest_weight), max(self.largest_error, other.largest_error),
            self.outputs + other.outputs, self.output_errors + other.output_errors,
        )  # fmt: skip

    @property
    def relative(self) -> float:
        """Root mean square of the errors, relative to that of the weights; 0 for weights of zeros."""
        return math.sqrt(self.errors / self.weights) if self.weights else 0.0

    @property
    def relative_output(self) -> float:
        """Root mean square of the outputs' errors, relative to that of the outputs; 0 for outputs of zeros."""
        return math.sqrt(self.output_errors / self.outputs) if self.outputs else 0.0


Report = Callable[[str, tuple[int, int], Errors], None]
"""Gets the name, shape and errors of each quantised weight when it is rounded."""


def errors_of(strip: Strip, values: Strip) -> Errors:
    """The errors of the values that stand for a strip."""
    difference = np.subtract(strip, values, dtype=np.float64)
    weights = strip.astype(np.float64)
    return Errors(
        float(np.vdot(weights, weights)), float(np.vdot(difference, difference)),
        float(np.abs(strip).max(initial=0.0)), float(np.abs(difference).max(initial=0.0)),
    )  # fmt: skip


def round_weight(weight: NDArray[Any], form: Format, threads: int | None = None) -> tuple[Arrays, Errors]:
    """A weight's tensors in a format, and its errors; NoWeight for one that holds what is no weight. In addition to the tensors
    it takes some strips of memory for each of `threads` threads (the number of cores)."""
    rows, columns = weight.shape
    step = form.height * max(1, STRIP // (form.height * columns))
    stored = form.stored((rows, columns), weight.dtype)
    whole = form.whole((rows, columns))
    result = {end: np.empty(shape, dtype) for end, (dtype, shape) in stored.items() if end not in whole}

    def one(begin: int) -> Errors:
        strip = weight[begin : begin + step].astype(np.float32)
        check_strip(strip, begin)
        arrays, values = form.rounded(strip, weight.dtype)
        for end, array in arrays.items():
            first = begin if len(result[end]) == rows else begin // form.height
            result[end][first : first + len(array)] = array
        return errors_of(strip, values)

    with ThreadPoolExecutor(threads or os.cpu_count() or 1, thread_name_prefix="quantise") as pool:
        total = sum(pool.map(one, range(0, rows, step)), Errors())
    return {**result, **whole}, total


def check_strip(strip: Strip, begin: int) -> None:
    """NoWeight for the first element that is none; `begin` is the strip's first row."""
    good = np.abs(strip) <= LARGEST_WEIGHT  # false of NaN
    if not good.all():
        row, column = (int(index) for index in np.argwhere(~good)[0])
        raise NoWeight(f"holds {float(strip[row, column]):g} at [{begin + row}, {column}]")
