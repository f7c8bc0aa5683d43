"""Softmax and norms of rows, with their gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilec.kernels.ops import library_op, multiple, power_of_two


def _row(known: Mapping[str, Any]) -> dict[str, int]:
    """A row is one tile."""
    return {"ROWS": 1, "BLOCK": power_of_two(known["N"], 1024), "MULTIPLE": multiple(known["N"])}


_softmax = library_op("softmax", _row)


def softmax(x: Any) -> Any:
    """Softmax over the last axis of `x` (bf16, f16 or f32; at most 8192 elements), computed in f32 and rounded once."""
    return _softmax()(x.reshape(-1, x.shape[-1])).reshape(x.shape)
