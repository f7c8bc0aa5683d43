"""Convolutions of planes by PyTorch's operators. Functions and parameters are named like kernels and theirs."""

from __future__ import annotations

import importlib
from typing import Any

torch: Any = importlib.import_module("torch")


def conv2d(x: Any, weight: Any, bias: Any, down: int, offset: int) -> Any:
    """Of direction 1 and up 1."""
    planes, filters = (one.permute(0, 3, 1, 2) for one in (x, weight))
    out = torch.nn.functional.conv2d(planes, filters, bias, down, -offset)
    return out.permute(0, 2, 3, 1).reshape(-1, weight.shape[0])


def column_sums(x: Any) -> Any:
    return x.float().sum(dim=0, keepdim=True)


def channels_last(x: Any) -> Any:
    return x.transpose(1, 2).contiguous()
