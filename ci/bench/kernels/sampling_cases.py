"""Cases of the kernels that sample rows. Part of `cases`.

What is right is `kernels_src.reference_sampling`, in NumPy.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ci.bench.kernels.launch import Tensors
from ci.bench.kernels.rounded import Rounded, exact
from kernels_src import reference_sampling
from tilec.artifact.records import Manifest

torch: Any = importlib.import_module("torch")

REFERENCE: Final[Any] = reference_sampling

SCORE_ERROR: Final = 2.0**-15
"""Of a score: some units in the last place of a number below 64."""
LOGPROB_ERROR: Final = 2.0**-13
"""Of a logarithm of a probability: of the sum of exponentials, and of a logit below 64."""


def sizes(manifest: Manifest) -> list[dict[str, int]]:
    """Dims of launches: a vocabulary within one group, of no fewer tokens than are reported, one of a tile, and a model's."""
    if manifest.kernel not in MEANING:
        return []
    align, rest = int(manifest.constants["ALIGN"]), {"NUMBERS": 8, "FACTORS": 4}
    rest = {"NUMBERS": 8} if manifest.kernel == "sample_report" else rest
    least = -(-int(manifest.constants.get("TOP", 1)) // align) * align
    return [{"B": b, "V": v, "GROUPS": -(-v // 32)} | rest for b, v in ((1, least), (4, 2056), (3, 151936))]


def adjust(manifest: Manifest, t: Tensors) -> None:
    """Parameters that the engine allows: rows in turn have all of them, a cut of many tokens, one of few, and none."""
    if manifest.kernel not in MEANING:
        return
    rows, vocabulary = t["logits"].shape
    random = np.random.default_rng(vocabulary)
    numbers = np.zeros((rows, 8), np.int32)
    turns = [(vocabulary, 1 << 29, 1 << 12, 3), (300, 1 << 30, 0, 0), (20, 1 << 30, 0, 2), (1, 1 << 30, 0, 1)]
    for row in range(rows):
        numbers[row, [0, 1, 2, 7]] = turns[row % 4]
        numbers[row, 0] = min(numbers[row, 0], vocabulary)
    numbers[:, 3:5] = random.integers(-(1 << 31), 1 << 31, (rows, 2))
    numbers[:, 6] = 100
    _set(t, "numbers", numbers)
    marks = [0, 0, 0, 1, 1 << 24, 1 << 25, 1 << 26]
    _set(t, "state", np.array(marks, np.int32)[random.integers(0, len(marks), (rows, vocabulary))])
    if "positions" in t:
        _set(t, "positions", random.integers(0, 64, rows, np.int32))
    if "factors" in t:
        _set(t, "factors", random.uniform(0.5, 2, (rows, 4)).astype(np.float32))
    if manifest.kernel == "sample_rows":
        _set(t, "maxima", np.asarray(REFERENCE.sample_maxima(*_scored(t)), np.float32))
    if manifest.kernel == "sample_report":
        _set(t, "token", random.integers(0, vocabulary, rows, np.int32))


def _set(t: Tensors, name: str, values: Any) -> None:
    t[name].copy_(torch.as_tensor(values, device=str(t[name].device)))


def _array(tensor: Any) -> Any:
    wide = tensor.double() if tensor.is_floating_point() else tensor
    return wide.cpu().numpy()


def _scored(t: Tensors) -> list[Any]:
    return [_array(t[name]) for name in ("logits", "state", "bias", "numbers", "factors", "positions")]


def _tensor(t: Tensors, values: Any) -> Any:
    return torch.as_tensor(values, device=str(t["logits"].device))


def _maxima(manifest: Manifest, t: Tensors) -> Tensors:
    return {"maxima": _tensor(t, REFERENCE.sample_maxima(*_scored(t)))}


def _rows(manifest: Manifest, t: Tensors) -> Tensors:
    logits, *rest = _scored(t)
    return {"token": _tensor(t, REFERENCE.sample_rows(logits, _array(t["maxima"]), *rest))}


def _report(manifest: Manifest, t: Tensors) -> Tensors:
    taken = [_array(t[name]) for name in ("logits", "token", "numbers", "state", "bias", "maxima")]
    found = REFERENCE.sample_report(*taken, int(manifest.constants["TOP"]))
    return {name: _tensor(t, one) for name, one in zip(("state", "maxima", "tokens", "logprobs"), found, strict=True)}


def _rounded_maxima(manifest: Manifest, t: Tensors) -> dict[str, Any]:
    found = exact(_maxima(manifest, t)["maxima"])
    return {"maxima": Rounded(found.value, found.bound + SCORE_ERROR)}


def _rounded_report(manifest: Manifest, t: Tensors) -> dict[str, Any]:
    found = _report(manifest, t)
    logprobs = exact(found["logprobs"])
    return {"maxima": exact(found["maxima"]), "logprobs": Rounded(logprobs.value, logprobs.bound + LOGPROB_ERROR)}


MEANING: Final[dict[str, Callable[[Manifest, Tensors], Tensors]]] = {
    "sample_maxima": _maxima, "sample_rows": _rows, "sample_report": _report,
}  # fmt: skip
"""Each kernel as the reference has it."""

ROUNDED: Final[dict[str, Callable[[Manifest, Tensors], dict[str, Any]]]] = {
    "sample_maxima": _rounded_maxima, "sample_report": _rounded_report,
}  # fmt: skip
"""The same with bounds of the errors of each float."""
