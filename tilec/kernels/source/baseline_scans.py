"""Sums up to each element, and counts, by PyTorch's operators. Functions and parameters are named like kernels and theirs."""

from __future__ import annotations

import importlib
from typing import Any

torch: Any = importlib.import_module("torch")


def cumsum(x: Any, reverse: int) -> Any:
    return torch.cumsum(x.flip(-1), -1).flip(-1) if reverse else torch.cumsum(x, -1)


def bincount(x: Any, counts: Any) -> Any:
    return counts + torch.bincount(x, minlength=counts.shape[0])


def histogram(x: Any, counts: Any, low: float, high: float) -> Any:
    return counts + torch.histc(x, counts.shape[0], low, high)
