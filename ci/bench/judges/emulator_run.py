"""Emulates launches of `emulator_cases` and compares their outputs with the float64 references.

Returns the emulator's report for a case, a PTX text and a seed, and the error of each tensor against the reference.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np

from ci.bench.judges.emulator_cases import Array, Case
from ci.evidence import ROOT
from tests.shipped_launches import EXTRA, REFERENCES
from tilec.emulator.errors import Report
from tilec.emulator.launch import emulate
from tilec.emulator.ptx.syntax import Module

NUMPY: Final = {"bf16": ml_dtypes.bfloat16, "f8e4m3": ml_dtypes.float8_e4m3fn}


def run(case: Case, ptx: str | Module, arrays: dict[str, Array], seed: int = 0) -> Report:
    """Emulate the launch; `arrays` have storage dtypes and are not changed."""
    return emulate(ptx, case.manifest, arrays, {**case.env, **case.scalars}, seed=seed)


def typed(array: Array, dtype: str) -> Array:
    """Storage viewed as its own dtype."""
    return array.view(NUMPY[dtype]) if dtype in NUMPY else array


def expected(case: Case, arrays: dict[str, Array]) -> dict[str, Array]:
    """The reference result of each written tensor."""
    sys.path.insert(0, str(ROOT / "kernels_src"))
    try:
        modules = [importlib.import_module(name) for name in REFERENCES]
    finally:
        sys.path.pop(0)
    kernel = case.manifest.kernel
    function: Any = next(getattr(module, kernel) for module in modules if hasattr(module, kernel))
    inputs = [typed(arrays[s.name], s.dtype) for s in case.manifest.tensors if s.access in ("in", "inout")]
    scalars = [case.scalars[s.name] for s in case.manifest.scalars]
    extra = EXTRA[kernel](case.env) if kernel in EXTRA else ()
    found: Any = function(*inputs, *scalars, *extra)
    written = [s.name for s in case.manifest.tensors if s.access in ("out", "inout")]
    results: list[Any] = list(found) if isinstance(found, tuple) else [found]  # pyright: ignore[reportUnknownArgumentType]
    return dict(zip(written, results, strict=True))


@dataclass(frozen=True)
class Error:
    """Norm of the difference over the norm of the exact values, and largest difference over the largest value."""

    norm: float
    largest: float


def error(value: Array, exact: Array) -> Error:
    """The error of a tensor against float64; equal infinities count as equal, a NaN as an infinite error."""
    value, exact = np.asarray(value).astype(np.float64), np.asarray(exact).astype(np.float64).reshape(value.shape)
    with np.errstate(invalid="ignore"):
        difference = np.where(value == exact, 0.0, value - exact)
    difference = np.where(np.isnan(difference), np.inf, difference)
    finite = np.where(np.isinf(exact), 0.0, exact)
    norm, top = float(np.linalg.norm(finite)), float(np.abs(finite).max(initial=0))
    return Error(float(np.linalg.norm(difference)) / (norm or 1.0), float(np.abs(difference).max(initial=0)) / (top or 1.0))
