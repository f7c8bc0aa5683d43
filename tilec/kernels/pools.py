"""Pools of planes, with gradients that are sums in a fixed order."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from tilec.kernels.ops import library_op, multiple, without_gradient
from tilec.kernels.shapes import whole

MOST: Final = 16384
"""Elements of a side of a plane, of a window, of a stride."""
TILE: Final = {"BH": 8, "BW": 32}
"""Rows and columns that a block computes: eight neighbours in each thread of its warp."""

FIXED: Final = frozenset({(3, 2, 1), (2, 2, 0), (3, 1, 1)})
"""Windows, strides and paddings for which kernels have constants, if rows are whole vectors."""
VECTOR: Final = 8
"""Elements of a row that such kernels take at once."""


def side(extent: Any, window: int, stride: int, padding: int) -> Any:
    """Windows along a side of a plane."""
    return (extent + 2 * padding - window) // stride + 1


def _outputs(known: Mapping[str, Any]) -> dict[str, Any]:
    return {f"O{name}": side(known[name], known["window"], known["stride"], known["padding"]) for name in "HW"}


def _tile(known: Mapping[str, Any]) -> dict[str, int]:
    return TILE | {"MULTIPLE": multiple(_outputs(known)["OW"])}


def _gradient_tile(known: Mapping[str, Any]) -> dict[str, int]:
    return TILE | {"MULTIPLE": multiple(known["W"])}


def _fixed_outputs(known: Mapping[str, Any]) -> dict[str, Any]:
    return _outputs({**known, "H": known["HS"] * known["stride"]})


def _fixed_tile(known: Mapping[str, Any]) -> dict[str, int]:
    """About 1024 elements that a block reads or writes in vectors."""
    return _fixed_numbers(known) | {"BH": 8 if known["stride"] > 1 else 16, "BW": 64}


def _fixed_gradient_tile(known: Mapping[str, Any]) -> dict[str, int]:
    return _fixed_numbers(known) | {"BH": 16, "BW": 64}


def _fixed_numbers(known: Mapping[str, Any]) -> dict[str, int]:
    return {name.upper(): known[name] for name in ("window", "stride", "padding")}


def _is_fixed(planes: Any, window: int, stride: int, padding: int) -> bool:
    """Whether kernels of constant windows take these planes."""
    _, height, width = planes.shape
    if (window, stride, padding) not in FIXED or height % stride:
        return False
    return width % VECTOR == side(width, window, stride, padding) % VECTOR == 0


def _keep_positions(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, Any]) -> None:
    without_gradient(ctx, output[1])
    ctx.shape, ctx.numbers = inputs[0].shape, inputs[1:]
    ctx.save_for_backward(output[1])


def _keep_numbers(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.shape, ctx.numbers = inputs[0].shape, inputs[1:]


def _gradient(backward: Callable[[], Any], ctx: Any, dout: Any, *_of_statistics: Any) -> tuple[Any, ...]:
    """The gradient of the planes, by the op that writes it; None of the numbers."""
    dx = dout.new_empty(tuple(ctx.shape))
    backward()(whole(dout), *ctx.saved_tensors, dx, *ctx.numbers)
    return dx, None, None, None


_max_pool2d_backward = library_op("max_pool2d_backward", _gradient_tile, mutates=["dx"])
_max_pool2d = library_op(
    "max_pool2d", _tile, dims=_outputs, gradient=(partial(_gradient, _max_pool2d_backward), _keep_positions)
)
_avg_pool2d_backward = library_op("avg_pool2d_backward", _gradient_tile, mutates=["dx"])
_avg_pool2d = library_op("avg_pool2d", _tile, dims=_outputs, gradient=(partial(_gradient, _avg_pool2d_backward), _keep_numbers))
_max_pool2d_fixed_backward = library_op("max_pool2d_fixed_backward", _fixed_gradient_tile, mutates=["dx"])
_max_pool2d_fixed = library_op(
    "max_pool2d_fixed", _fixed_tile, dims=_fixed_outputs,
    gradient=(partial(_gradient, _max_pool2d_fixed_backward), _keep_positions),
)  # fmt: skip
_avg_pool2d_fixed_backward = library_op("avg_pool2d_fixed_backward", _fixed_gradient_tile, mutates=["dx"])
_avg_pool2d_fixed = library_op(
    "avg_pool2d_fixed", _fixed_tile, dims=_fixed_outputs,
    gradient=(partial(_gradient, _avg_pool2d_fixed_backward), _keep_numbers),
)  # fmt: skip


def _planes(function: str, x: Any, window: int, stride: int, padding: int) -> Any:
    """`x` as planes `[M, H, W]`; ValueError for numbers that give no output, and for too large ones."""
    if x.ndim < 2:
        raise ValueError(f"{function}: `x` has {x.ndim} axes; at least 2 are needed")
    height, width = x.shape[-2:]
    if not (1 <= window <= MOST and 1 <= stride <= MOST):
        raise ValueError(f"{function}: `window` is {window} and `stride` {stride}; both are from 1 to {MOST}")
    if not 0 <= padding <= window // 2:
        raise ValueError(f"{function}: `padding` is {padding}; it is from 0 to half of `window`, {window // 2}")
    if max(height, width) > MOST or min(height, width) + 2 * padding < window:
        limit = f"a side has at most {MOST} elements, and with padding at least the {window} of `window`"
        raise ValueError(f"{function}: `x` has planes of {height} x {width}; {limit}")
    return whole(x.reshape(math.prod(x.shape[:-2]), height, width))


def _pooled(function: str, x: Any, numbers: tuple[int, int, int], fixed: Callable[[], Any], other: Callable[[], Any]) -> Any:
    """What an op returns for the planes of `x`: `fixed`, of constant windows, if its kernels take them; else `other`.
    `numbers`: window, stride, padding."""
    planes = _planes(function, x, *numbers)
    if not _is_fixed(planes, *numbers):
        return other()(planes, *numbers)
    (count, height, width), stride = planes.shape, numbers[1]
    return fixed()(planes.reshape(count, height // stride, stride, width), *numbers)


def max_pool2d(x: Any, window: int, stride: int | None = None, padding: int = 0) -> Any:
    """The largest element of each window of a plane, as `torch.nn.functional.max_pool2d`.

    x: `[..., H, W]`, bf16, f16 or f32, sides of at most 16384. Windows have `window` x `window` elements, and are `stride`
    apart, or `window` if none is given; `padding`, at most half of `window`, is how far they reach out of the plane. Returns
    `[..., (H + 2 * padding - window) // stride + 1, ...]`. NaN is above all numbers. Gradient: of `x`, to the first of the
    largest elements. ValueError for other numbers."""
    numbers = window, window if stride is None else stride, padding
    out, _indices = _pooled("max_pool2d", x, numbers, _max_pool2d_fixed, _max_pool2d)
    return out.reshape((*x.shape[:-2], *out.shape[1:]))


def avg_pool2d(x: Any, window: int, stride: int | None = None, padding: int = 0) -> Any:
    """The mean of each window of a plane, as `torch.nn.functional.avg_pool2d`: elements outside of the plane count as 0.

    x, window, stride, padding and the shape of the result: as of `max_pool2d`. Computed in f32, rounded once. Gradient: of `x`.
    ValueError for other numbers."""
    numbers = window, window if stride is None else stride, padding
    out = _pooled("avg_pool2d", x, numbers, _avg_pool2d_fixed, _avg_pool2d)
    return out.reshape((*x.shape[:-2], *out.shape[1:]))
