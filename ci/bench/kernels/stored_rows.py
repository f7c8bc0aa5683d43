"""Outputs that a kernel computes from a row it stored, and the most by which rounding moves them.

Part of `cases`. A kernel that begins the next norm stores a row in 16 bits, then the row's product with a weight and sums of
squares of its runs. The row's own error is compared with float64. What is computed from it is compared here with the exact
result of the row *as stored*: float64 has another row where a sum lies next to the middle of two numbers of 16 bits, and one
such element moves a sum of 16 squares more than every other rounding. Whether that happens to the kernel or to torch is chance,
so a ratio of their errors says nothing about either. NumPy only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tilec.artifact.records import Manifest
from tilec.target.dtypes import DTYPES, DType

KERNELS: Final = (
    "matvec_add_scaled", "matvec_add_scaled_rows", "matvec_add_scaled_fp8", "matvec_add_scaled_rows_fp8",
    "matvec_add_scaled_int4", "matvec_add_scaled_rows_int4", "embedding_scaled", "embedding_scaled_rows",
    "experts_add_scaled", "experts_add_scaled_fp8", "experts_add_scaled_int4",
)  # fmt: skip
"""Their outputs in order: the row, its product with `weight` in the same dtype, and sums of squares of each run in f32."""
UNIT: Final = 2.0 ** -DTYPES["f32"].significand
"""Largest relative error of one rounding to f32."""
FLUSHED: Final = 2.0**-126
"""The smallest normal number of f32: arithmetic that flushes smaller ones to zero is wrong by at most this."""

Wide = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Output:
    """A computed output: its name, the exact values, and the largest right error of each."""

    name: str
    exact: Wide
    bound: Wide

    def allows(self, value: Any) -> bool:
        """Whether each element is within its bound; NaN never is, an infinity only where the exact value is the same."""
        found = np.asarray(value, np.float64)
        with np.errstate(invalid="ignore"):
            near = (np.abs(found - self.exact) <= self.bound) & np.isfinite(self.exact)
        return found.shape == self.exact.shape and bool((near | (found == self.exact)).all())


def row_name(manifest: Manifest) -> str:
    """The output that holds the stored row."""
    return _outputs(manifest)[0]


def computed(manifest: Manifest, row: Any, weight: Any, runs: int) -> tuple[Output, Output]:
    """The product with the weight, and the sums of squares of `runs` equal runs of each row.

    `row` (rows, N) and `weight` (N,) are as stored, in any float dtype that holds them. In any order of summation a sum of n
    squares has at most n roundings on the way of each term, so its relative error is at most n*u / (1 - n*u) (Higham, Accuracy
    and Stability of Numerical Algorithms, 2nd ed., section 4.2: no term is negative). A product is rounded to f32 and then to
    the dtype of the row. No result may overflow: rows of normal numbers stay far below the largest f16.
    """
    _, scaled, squares = _outputs(manifest)
    wide, weights = np.asarray(row, np.float64), np.asarray(weight, np.float64)
    own = DTYPES[next(spec.dtype for spec in manifest.tensors if spec.name == scaled)]
    product = wide * weights
    parts = (wide * wide).reshape(len(wide), runs, -1)
    count = parts.shape[2]
    total = parts.sum(2)
    return (
        Output(scaled, product, _half_unit(product * (1 + UNIT), own) + UNIT * np.abs(product) + FLUSHED),
        Output(squares, total, count * UNIT / (1 - count * UNIT) * total + count * FLUSHED),
    )


def _outputs(manifest: Manifest) -> list[str]:
    return [spec.name for spec in manifest.tensors if spec.access in ("out", "inout")]


def _half_unit(value: Wide, dtype: DType) -> Wide:
    """Half the distance of the numbers of an IEEE-like float dtype around each value."""
    top = np.frexp(dtype.largest)[1] - 1
    exponent = np.maximum(np.frexp(value)[1] - 1, 1 - top)  # that of the smallest normal number at least
    return np.ldexp(0.5, exponent - (dtype.significand - 1))
