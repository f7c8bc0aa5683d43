"""A second checker while a side file is prepared: compares the NumPy references of the project with the interpreter's results.

A reference is a function called like its kernel in a `reference*.py` next to the kernels, as `tilec test` uses it. It is
executed, so it comes from the project of whoever prepares, never from a bundle or a side file. It sees what the interpreter
cannot: tile IR that does not say what its author meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tilec.artifact.records import Manifest
from tilec.project.trial.launches import Contract
from tilec.project.trial.trial import NoReference, compared, own_reference, reference_inputs, reference_results
from tilec.target.dtypes import DTYPES

Array = NDArray[Any]
AGREES: Final = "agrees"
DIFFERS: Final = "differs: "


def compared_reference(
    folder: Path, manifest: Manifest, values: Mapping[str, float], before: dict[str, Array], after: Mapping[str, Array],
    least: float,
) -> str:  # fmt: skip
    """What the reference in `folder` says of a whole launch: `AGREES`, `DIFFERS` and where, or why it says nothing. `before`
    and `after` are the tensors before and after the launch, by name. The tolerance is that of the reference or the dtype,
    and at least `least`: a reference rounds nothing, so results differ by all roundings of the kernel."""
    found = own_reference(folder, manifest.kernel)
    if found is None:
        return "no reference"
    contract = Contract.of_manifest(manifest)
    outputs = [spec for spec in manifest.tensors if spec.access not in ("in", "scratch")]
    try:
        truths, relative = reference_results(*found, reference_inputs(contract, before, values), len(outputs))
    except NoReference as error:
        return str(error)[:300]
    tolerances = [max(least, DTYPES[spec.dtype].tolerance if relative is None else relative) for spec in outputs]
    for spec, truth, tolerance in zip(outputs, truths, tolerances, strict=True):
        rounded = _overflowing(spec.dtype, truth)
        one = compared(spec, after[spec.name], rounded, (tolerance, tolerance * _usual(rounded)))
        if isinstance(one, str):
            return DIFFERS + one[:300]
        if one.error is not None and not one.error <= 1:
            index = ", ".join(map(str, one.worst))
            return f"{DIFFERS}`{one.name}[{index}]` is {one.found:g}, and {one.expected:g} by the reference"
    return AGREES


def _usual(truth: Array) -> float:
    """The root mean square of the finite elements: parts of a result that are empty must not narrow the tolerance of others."""
    finite = np.abs(truth[np.isfinite(truth)]).astype(np.float64)
    return float(np.sqrt(np.mean(finite * finite))) if finite.size else 0.0


def _overflowing(dtype: str, truth: Array) -> Array:
    """What a float dtype makes of a reference's results that are too large for it: infinities."""
    largest = DTYPES[dtype].largest
    if not largest or truth.dtype.kind != "f":
        return truth
    return np.where(np.abs(truth) > largest, np.copysign(np.inf, truth), truth)
