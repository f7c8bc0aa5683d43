"""Discrete Fourier transforms, with gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from tilec.kernels.ops import library_op
from tilec.kernels.shapes import whole

LONGEST: Final = 4096
"""Elements of a row, which is one tile."""


def _rows(known: Mapping[str, Any]) -> dict[str, int]:
    length = known["N"]
    return {"ROWS": 64 if length <= 32 else 2 if length <= 256 else 1, "N": length}


def _keep_roots(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.sign, ctx.scale = inputs[2:]
    ctx.save_for_backward(inputs[1])


def _transform_gradient(ctx: Any, dout: Any) -> tuple[Any, None, None, None]:
    """The transform in the other direction."""
    pairs = whole(dout).reshape(dout.shape[0], -1, 2)
    return _fft()(pairs, *ctx.saved_tensors, -ctx.sign, ctx.scale).reshape(pairs.shape), None, None, None


_fft = library_op("fft", _rows, gradient=(_transform_gradient, _keep_roots))
_fft_roots = library_op("fft_roots", {"BLOCK": 256}, mutates=["roots"])


def fft(x: Any, inverse: bool = False) -> Any:
    """The discrete Fourier transform of each row, as `torch.fft.fft`, or with `inverse` as `torch.fft.ifft`.

    x: f32 `[..., N, 2]`, real and imaginary parts as `torch.view_as_real` gives them, N a power of two of at most 4096. Returns
    the same shape: `sum(x[j] * exp(-2j * pi * j * k / N) for j in range(N))`, inverse with the other sign and divided by N; in
    f32. Gradient: of `x`. ValueError for other shapes."""
    if x.ndim < 2 or x.shape[-1] != 2:
        raise ValueError(f"fft: `x` has the shape {list(x.shape)}; it is `[..., N, 2]`, real and imaginary parts")
    length = x.shape[-2]
    if not 2 <= length <= LONGEST or length & (length - 1) != 0:
        raise ValueError(f"fft: rows of `x` have {length} elements; powers of two from 2 to {LONGEST} are supported")
    rows = whole(x.reshape(math.prod(x.shape[:-2]), length, 2))
    roots = rows.new_empty((length, 2))
    _fft_roots()(roots)
    return _fft()(rows, roots, 1.0 if inverse else -1.0, 1 / length if inverse else 1.0).reshape(x.shape)
