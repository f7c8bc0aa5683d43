"""Pools and transforms by PyTorch's operators. Functions and parameters are named like kernels and theirs."""

from __future__ import annotations

import importlib
from typing import Any

torch: Any = importlib.import_module("torch")
functional: Any = torch.nn.functional


def max_pool2d(x: Any, window: int, stride: int, padding: int) -> Any:
    return functional.max_pool2d(x, window, stride, padding, return_indices=True)


def avg_pool2d(x: Any, window: int, stride: int, padding: int) -> Any:
    return functional.avg_pool2d(x, window, stride, padding)


def max_pool2d_fixed(x: Any, window: int, stride: int, padding: int) -> Any:
    return functional.max_pool2d(x.flatten(1, 2), window, stride, padding)


def avg_pool2d_fixed(x: Any, window: int, stride: int, padding: int) -> Any:
    return functional.avg_pool2d(x.flatten(1, 2), window, stride, padding)


def fft(x: Any, sign: float, scale: float) -> Any:
    pairs = torch.view_as_complex(x)
    found = torch.fft.fft(pairs) * scale if sign < 0 else torch.fft.ifft(pairs, norm="forward") * scale
    return torch.view_as_real(found)
