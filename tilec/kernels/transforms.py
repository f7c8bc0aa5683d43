"""Discrete Fourier transforms, with gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from tilec.kernels.ops import library_op
from tilec.kernels.shapes import whole

LONGEST: Final = 4096
"""Elements of a row, which is one tile."""


FORMS: Final = {
    2: (128, 2, 1, 1), 4: (64, 2, 2, 1), 8: (32, 2, 4, 1), 16: (32, 4, 4, 1), 32: (32, 8, 4, 1), 64: (16, 8, 8, 1),
    128: (16, 16, 8, 1), 256: (8, 16, 16, 1), 512: (1, 8, 8, 8), 1024: (1, 16, 8, 8), 2048: (1, 16, 16, 8),
    4096: (1, 16, 16, 16),
}  # fmt: skip
"""By elements of a row: rows of a block, and the radices of the digits of a position."""


def _rows(known: Mapping[str, Any]) -> dict[str, int]:
    length = int(known["N"])  # a traced extent becomes a constant
    return {"N": length} | dict(zip(("ROWS", "A", "B", "C"), FORMS[length], strict=True))


def _keep_roots(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.sign, ctx.scale = inputs[2:]
    ctx.save_for_backward(inputs[1])


def _transform_gradient(ctx: Any, dout: Any) -> tuple[Any, None, None, None]:
    """The transform in the other direction."""
    return _fft()(whole(dout), *ctx.saved_tensors, -ctx.sign, ctx.scale), None, None, None


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
    _, first, second, third = FORMS[length]
    roots = rows.new_empty((length + second * third, 2))
    _fft_roots()(roots, length, length // first, third)
    return _fft()(rows, roots, 1.0 if inverse else -1.0, 1 / length if inverse else 1.0).reshape(x.shape)
