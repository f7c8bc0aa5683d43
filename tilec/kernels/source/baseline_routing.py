"""Mixtures of experts by PyTorch's operators. Functions and parameters are named like kernels and theirs."""

from __future__ import annotations

import importlib
from typing import Any

torch: Any = importlib.import_module("torch")


def moe_route(logits: Any, k: int, normalize: int) -> Any:
    weights, experts = torch.topk(torch.softmax(logits.float(), dim=-1), k, dim=-1)
    return weights / weights.sum(dim=-1, keepdim=True) if normalize else weights, experts


def expand_rows(x: Any, weights: Any, order: Any) -> Any:
    return x[order.long() // weights.shape[1]] * weights.reshape(-1, 1)[order.long()].to(x.dtype)


def combine_rows(y: Any, weights: Any, slots: Any) -> Any:
    return (y[slots.long()] * weights.to(y.dtype)[..., None]).sum(dim=1)


def combine_rows_dots(dout: Any, y: Any, slots: Any) -> Any:
    return (y[slots.long()] * dout[:, None]).sum(dim=-1)
