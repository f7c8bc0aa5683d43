"""Activations with their gradients."""

from __future__ import annotations

from typing import Any

from tilec.kernels.ops import library_op
from tilec.kernels.shapes import flat, shaped, whole


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate_swiglu(ctx: Any, dout: Any) -> Any:
    return _swiglu_backward()(*ctx.saved_tensors, whole(dout))


def _differentiate_gelu(ctx: Any, dout: Any) -> Any:
    return _gelu_backward()(*ctx.saved_tensors, whole(dout))


_swiglu = library_op("swiglu", {"BLOCK": 2048}, gradient=(_differentiate_swiglu, _save))
_swiglu_backward = library_op("swiglu_backward", {"BLOCK": 2048})
_gelu = library_op("gelu", {"BLOCK": 4096}, gradient=(_differentiate_gelu, _save))
_gelu_backward = library_op("gelu_backward", {"BLOCK": 2048})


def swiglu(gate: Any, up: Any) -> Any:
    """`silu(gate) * up`, the gated activation of a SwiGLU layer, computed in f32 and rounded once.

    gate, up: bf16, f16 or f32, of one dtype and one shape `[...]`, at most 2147418112 elements; those with gaps are copied.
    Gradient: of both. ValueError for different shapes and more elements."""
    if gate.shape != up.shape:
        raise ValueError(f"`up` has the shape {list(up.shape)}; it has that of `gate`, {list(gate.shape)}")
    return shaped(_swiglu()(flat("gate", gate), flat("up", up)), gate.shape)


def gelu(x: Any) -> Any:
    """`x * (1 + erf(x / sqrt(2))) / 2`, computed in f32 and rounded once, as `torch.nn.functional.gelu` without approximation.

    x: bf16, f16 or f32, of any shape, at most 2147418112 elements; with gaps it is copied. Gradient: of `x`. ValueError for
    more elements."""
    return shaped(_gelu()(flat("x", x)), x.shape)
