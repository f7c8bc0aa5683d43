"""Softmax and norms by PyTorch's operators. Functions and parameters are
named like kernels and theirs."""

from __future__ import annotations

import importlib
from typing import Any

torch: Any = importlib.import_module("torch")
functional: Any = torch.nn.functional
aten: Any = torch.ops.aten


def softmax(x: Any) -> Any:
    return torch.softmax(x, dim=1)


def softmax_backward(dout: Any, out: Any) -> Any:
    return aten._softmax_backward_data(dout, out, 1, out.dtype)


def softmax_long(x: Any) -> Any:
    return torch.softmax(x, dim=1)


def softmax_long_backward(dout: Any, out: Any) -> Any:
    return softmax_backward(dout, out)


def layer_norm(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    out, mean, rstd = torch.native_layer_norm(x, (x.shape[1],), weight, bias, eps)
    return out, mean.flatten().float(), rstd.flatten().float()


def layer_norm_backward(dout: Any, x: Any, weight: Any, mean: Any, rstd: Any, P: int) -> Any:
    """PyTorch has the gradient of the input in one operator; sums of stripes are of the same products."""
    statistics = (mean[:, None], rstd[:, None])
    dx, _, _ = aten.native_layer_norm_backward(dout, x, (x.shape[1],), *statistics, weight, weight, (True, True, True))
    y = (x.float() - mean[:, None]) * rstd[:, None]
    return dx, torch.stack([stripes(dout.float() * y, P), stripes(dout.float(), P)], dim=1)


def rms_norm(x: Any, weight: Any, eps: float) -> Any:
    rstd = torch.rsqrt(x.float().square().mean(dim=1) + eps)
    return functional.rms_norm(x, (x.shape[1],), weight, eps), rstd


def rms_norm_backward(dout: Any, x: Any, weight: Any, rstd: Any, P: int) -> Any:
    y, dy = x.float() * rstd[:, None], dout.float() * weight.float()
    dx = rstd[:, None] * (dy - y * (dy * y).mean(dim=1, keepdim=True))
    return dx.to(x.dtype), stripes(dout.float() * y, P)


def stripes(x: Any, P: int) -> Any:
    return torch.stack([x[p::P].sum(dim=0) for p in range(P)])


def sum_partials(partial: Any, E: str) -> Any:
    return partial.sum(dim=0).to({"bf16": torch.bfloat16, "f16": torch.float16}.get(E, torch.float32))


def group_norm(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    samples, groups, channels, length = x.shape
    flat = x.reshape(samples, groups * channels, length)
    out, mean, rstd = torch.native_group_norm(
        flat, weight.flatten(), bias.flatten(), samples, groups * channels, length, groups, eps
    )
    return out.reshape(x.shape), mean.float(), rstd.float()


def group_norm_backward(dout: Any, x: Any, weight: Any, mean: Any, rstd: Any) -> Any:
    """PyTorch has the gradient of the input in one operator; sums of samples are of the same products."""
    samples, groups, channels, length = x.shape
    flat = (samples, groups * channels, length)
    dx, _, _ = aten.native_group_norm_backward(
        dout.reshape(flat), x.reshape(flat), mean, rstd, weight.flatten(), *flat, groups, (True, True, True)
    )
    y = (x.float() - mean[:, :, None, None]) * rstd[:, :, None, None]
    return dx.reshape(x.shape), torch.stack([(dout.float() * y).sum(dim=3), dout.float().sum(dim=3)], dim=1)
