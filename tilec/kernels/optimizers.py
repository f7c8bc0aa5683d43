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
    parameter, mean, square = written(p, grad, m, v)
    launch_step(parameter, mean, square, flat("grad", grad.detach()), step_numbers(step, lr, betas, eps, weight_decay))


def written(p: Any, grad: Any, m: Any, v: Any) -> tuple[Any, Any, Any]:
    """`p`, `m` and `v` along one axis; ValueError if a shape differs from that of `p`, or one cannot be written in place."""
    for name, tensor in (("grad", grad), ("m", m), ("v", v)):
        if tensor.shape != p.shape:
            raise ValueError(f"`{name}` has the shape {list(tensor.shape)}; it has that of `p`, {list(p.shape)}")
    for name, tensor in (("p", p), ("m", m), ("v", v)):
        if not tensor.is_contiguous():
            raise ValueError(f"`{name}` has gaps; a tensor that is written has none")
        if not is_aligned(tensor):
            raise ValueError(f"`{name}` does not begin at a multiple of {ALIGNMENT} bytes; a tensor that is written does")
    parameter, mean, square = (flat(name, tensor.detach()) for name, tensor in (("p", p), ("m", m), ("v", v)))
    return parameter, mean, square


def step_numbers(step: int, lr: float, betas: tuple[float, float], eps: float, decay: float) -> tuple[float, ...]:
    """The numbers that the kernel takes for a step."""
    beta1, beta2 = betas
    return 1 - beta1, 1 - beta2, 1 - lr * decay, lr / (1 - beta1**step), (1 - beta2**step) ** -0.5, eps


def launch_step(parameter: Any, mean: Any, square: Any, grad: Any, numbers: tuple[float, ...]) -> None:
    """A step of tensors of one axis."""
    _adamw()(parameter, grad, mean, square, *numbers)


def repeated_step(parameter: Any, mean: Any, square: Any, grad: Any, numbers: tuple[float, ...]) -> Any:
    """`launch_step` without most of its cost for the host: a function of a stream's handle, the address of a gradient like
    `grad` and numbers, which writes the same tensors and does not count their versions. PyTorch's op is needed."""
    op: Any = _adamw()
    return op.repeated("grad", parameter, grad, mean, square, *numbers).launch
