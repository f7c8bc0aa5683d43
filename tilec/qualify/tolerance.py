"""How far a right result may be from the interpreter's: the tile IR of a kernel goes in, a tolerance for each result comes out.

Both sides round at the same places of the tile IR. They differ in the order of sums and in the approximations of the machine,
both in f32, and so, rarely, in how a value just between two narrow floats rounds. Therefore an element of a result may differ
by one unit in its last place, and by a fraction of the usual size of the result: that of f32, or of the narrowest float that
the kernel computes with on the way. Integers must be equal.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tilec.ir.core import Function
from tilec.ir.ops import MemoryOp
from tilec.ir.types import TileType
from tilec.qualify.recipe import widened
from tilec.target.dtypes import DTYPES, DType, f32

F32: Final = 2.0**-12
"""The fraction for f32: sums of some ten thousand terms, and functions of the machine with 2^-22 (PTX ISA, `ex2.approx`)."""
OUTLIER: Final = 16
"""The usual size of a result is its root mean square, or so many medians if that is less."""


class Tolerance:
    """Tolerances of the results of a kernel."""

    def __init__(self, function: Function) -> None:
        self.inner = max([F32, *map(_step, _rounded(function))])

    def of(self, dtype: str, bits: NDArray[Any]) -> tuple[float, float]:
        """(relative, absolute) for expected elements, given as stored; zeros for integers."""
        if not DTYPES[dtype].is_float:
            return 0.0, 0.0
        values = np.abs(widened(dtype, bits))
        values = values[np.isfinite(values)]
        relative = _step(DTYPES[dtype]) if _is_narrow(DTYPES[dtype]) else max(F32, self.inner)
        if not values.size:
            return relative, 0.0
        usual = float(np.sqrt(np.mean(np.square(values))))
        middle = float(np.median(values[values > 0])) if values.any() else 0.0
        return relative, self.inner * (min(usual, OUTLIER * middle) if middle else usual)


def _is_narrow(dtype: DType) -> bool:
    return 0 < dtype.significand < f32.significand


def _step(dtype: DType) -> float:
    """The relative distance of two numbers next to each other, at most."""
    return 2.0 ** (1 - dtype.significand)


def _rounded(function: Function) -> list[DType]:
    """Dtypes narrower than f32 that the kernel rounds to and computes with, other than in what it stores."""
    used: set[int] = set()
    for op in function.body.walk():
        if not isinstance(op, MemoryOp):
            used |= {id(operand) for operand in op.operands}
    found: list[DType] = []
    for op in function.body.walk():
        if isinstance(op, MemoryOp):
            continue
        for result in op.results:
            if isinstance(result.type, TileType) and _is_narrow(result.type.dtype) and id(result) in used:
                found.append(result.type.dtype)
    return found
