"""Losses, activations, positions, a step of AdamW and dropout by PyTorch's
operators. Functions and parameters are named like kernels and theirs."""

from __future__ import annotations

import importlib
from typing import Any

torch: Any = importlib.import_module("torch")
functional: Any = torch.nn.functional


def cross_entropy(logits: Any, labels: Any, ignore_index: int) -> Any:
    wide = logits.float()
    loss = functional.cross_entropy(wide, labels.long(), ignore_index=ignore_index, reduction="none")
    return loss, torch.logsumexp(wide, dim=1)


def cross_entropy_backward(logits: Any, labels: Any, lse: Any, dloss: Any, ignore_index: int) -> Any:
    weights = torch.exp(logits.float() - lse[:, None])
    used = labels != ignore_index
    ones = torch.ones_like(lse)[:, None]
    weights.scatter_add_(1, torch.where(used, labels, 0).long()[:, None], -ones)
    return (weights * torch.where(used, dloss, 0.0)[:, None]).to(logits.dtype)


def swiglu(gate: Any, up: Any) -> Any:
    return functional.silu(gate) * up


def swiglu_backward(gate: Any, up: Any, dout: Any) -> Any:
    return torch.ops.aten.silu_backward(dout * up, gate), dout * functional.silu(gate)


def gelu(x: Any) -> Any:
    return functional.gelu(x)


def gelu_backward(x: Any, dout: Any) -> Any:
    return torch.ops.aten.gelu_backward(dout, x)


def rope(x: Any, cos: Any, sin: Any, sign: float) -> Any:
    low, high = x.chunk(2, dim=-1)
    c, s = torch.cat((cos, cos), dim=-1)[:, None, :], torch.cat((sin, sin), dim=-1)[:, None, :] * sign
    return (x * c + torch.cat((-high, low), dim=-1) * s).to(x.dtype)


def adamw(
    p: Any, grad: Any, m: Any, v: Any, weight1: float, weight2: float, keep: float, step_size: float, scale: float, eps: float
) -> Any:
    gradient = grad.float()
    mean = torch.lerp(m, gradient, weight1)
    square = (v * (1 - weight2)).addcmul_(gradient, gradient, value=weight2)
    return (p.float() * keep).addcdiv_(mean, square.sqrt().mul_(scale).add_(eps), value=-step_size).to(p.dtype), mean, square


def dropout(x: Any, threshold: int) -> Any:
    """With another mask than the kernel's."""
    return functional.dropout(x, threshold / 2**32)
