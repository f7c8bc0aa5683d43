"""A step of AdamW."""

from __future__ import annotations

from typing import Any

from tilec.kernels.ops import library_op
from tilec.kernels.shapes import ALIGNMENT, flat, is_aligned

_adamw = library_op("adamw", {"BLOCK": 2048})


def adamw_(
    p: Any,
    grad: Any,
    m: Any,
    v: Any,
    step: int,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
) -> None:
    """One step of `torch.optim.AdamW`, in place: writes the parameter `p` and the means `m` of its gradient and `v` of the
    squared gradient, computed in f32; p is rounded once.

    p: f32 or bf16, grad: f32 or bf16, m and v: f32, all of one shape `[...]`, at most 2147418112 elements; all but grad without
    gaps and at multiples of 16 bytes. step: the number of this step, from 1. Numbers are those of the call: a CUDA graph
    repeats them. ValueError for different shapes, gaps, other places, more elements, and a step below 1."""
    if step < 1:
        raise ValueError(f"`step` is {step}; the first step is 1")
    for name, tensor in (("grad", grad), ("m", m), ("v", v)):
        if tensor.shape != p.shape:
            raise ValueError(f"`{name}` has the shape {list(tensor.shape)}; it has that of `p`, {list(p.shape)}")
    for name, tensor in (("p", p), ("m", m), ("v", v)):
        if not tensor.is_contiguous():
            raise ValueError(f"`{name}` has gaps; a tensor that is written has none")
        if not is_aligned(tensor):
            raise ValueError(f"`{name}` does not begin at a multiple of {ALIGNMENT} bytes; a tensor that is written does")
    beta1, beta2 = betas
    written = (flat(name, tensor.detach()) for name, tensor in (("p", p), ("m", m), ("v", v)))
    parameter, mean, square = written
    _adamw()(
        parameter, flat("grad", grad.detach()), mean, square, 1 - beta1, 1 - beta2, 1 - lr * weight_decay,
        lr / (1 - beta1**step), (1 - beta2**step) ** -0.5, eps,
    )  # fmt: skip
