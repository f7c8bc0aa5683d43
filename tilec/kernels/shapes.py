"""Tensors in the shape that kernels take, and errors for sizes that they do not."""

from __future__ import annotations

from typing import Any

from tilec.ir.types import MAX_DIM


def flat(name: str, x: Any) -> Any:
    """The elements of `x`, an argument called `name`, along one axis without gaps: a view if possible, else a copy.
    ValueError if there are more than a kernel takes."""
    if x.numel() > MAX_DIM:
        raise ValueError(f"`{name}` has {x.numel()} elements; a kernel takes at most {MAX_DIM}")
    return x.reshape(-1).contiguous()
