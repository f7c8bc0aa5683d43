"""Softmax and norms in NumPy and float64. Functions and parameters are
named like kernels and theirs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
Float = NDArray[np.float64]


def softmax(x: Array) -> Float:
    wide = x.astype(np.float64)
    weights = np.exp(wide - wide.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)
