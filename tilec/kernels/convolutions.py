"""Convolutions of planes, with gradients, as products of boxes of pixels, or else of pixels that are gathered one by one.

Channels are the last axis of what kernels read, as in PyTorch's `channels_last`. The gradient with respect to the planes is the
same kernel with the weights transposed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tilec.kernels.box_convolutions import column_sums, convolved, pixels, serves, stripes
from tilec.kernels.norms import summed
from tilec.kernels.ops import library_op, multiple
from tilec.kernels.pools import MOST, side
from tilec.kernels.shapes import whole

DTYPES: Final = ("bfloat16", "float16")
POSITIONS: Final = 1 << 30
"""Those of a result, of all samples."""
WEIGHTS: Final = {"BM": 64, "BN": 64, "BK": 32}
"""The output and input channels of a block that sums gradients of weights, and the positions that it takes at a time."""


def _multiple(known: Mapping[str, Any]) -> int:
    return min(multiple(known["C"]), multiple(known["O"]))


def _tile(known: Mapping[str, Any]) -> dict[str, int]:
    return {"BM": 128, "BN": 64, "BK": 32, "MULTIPLE": _multiple(known)}


def _weight_tile(known: Mapping[str, Any]) -> dict[str, int]:
    return {**WEIGHTS, "MULTIPLE": _multiple(known)}


def _positions(known: Mapping[str, Any]) -> dict[str, Any]:
    return {"Q": known["B"] * known["rows"] * known["columns"]}


def _weight_stripes(known: Mapping[str, Any]) -> dict[str, Any]:
    taps = known["height"] * known["width"]
    blocks = -(-known["O"] // WEIGHTS["BM"]) * -(-known["C"] // WEIGHTS["BN"]) * taps
    return {"R": known["height"], "S": known["width"], "P": stripes(-(-known["Q"] // WEIGHTS["BK"]), blocks)}


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, weight, bias, *ctx.numbers = inputs
    ctx.save_for_backward(x, weight, bias)


def _gradient(ctx: Any, dout: Any) -> tuple[Any, ...]:
    x, weight, bias = ctx.saved_tensors
    rows, columns, stride, _, _, offset = ctx.numbers
    samples, height, width, channels = x.shape
    slopes = whole(dout)
    planes = slopes.reshape(samples, rows, columns, weight.shape[0])
    nothing, turned = weight.new_zeros((channels,)), whole(weight.permute(3, 1, 2, 0))
    dx = _conv2d()(planes, turned, nothing, height, width, 1, stride, -1, -offset).reshape(x.shape)
    partial = _conv2d_weights()(slopes, x, rows, columns, stride, -offset, weight.shape[1], weight.shape[2])
    dbias = summed(column_sums()(slopes), bias)
    return dx, summed(partial, weight), dbias, *(None for _ in ctx.numbers)


_conv2d = library_op("conv2d", _tile, dims=_positions, gradient=(_gradient, _keep))
_conv2d_weights = library_op("conv2d_weights", _weight_tile, dims=_weight_stripes)


def _outputs(x: Any, weight: Any, bias: Any, stride: int, padding: int) -> tuple[int, int]:
    """Rows and columns of the result; ValueError for what has none, and for other dtypes, shapes and sizes."""
    for name, tensor in (("x", x), ("weight", weight)):
        if tensor.ndim != 4:
            raise ValueError(f"conv2d: `{name}` has {tensor.ndim} axes; 4 are needed")
    dtype = str(x.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise ValueError(f"conv2d: `x` is {dtype}; {' or '.join(DTYPES)} is needed")
    if weight.shape[1] != x.shape[1] or (bias is not None and tuple(bias.shape) != (weight.shape[0],)):
        shapes = f"`weight` has the shape {list(weight.shape)}{'' if bias is None else f' and `bias` {list(bias.shape)}'}"
        raise ValueError(f"conv2d: {shapes}; they are `[O, {x.shape[1]}, R, S]` and `[O]`")
    if not 1 <= stride <= MOST or not 0 <= padding <= MOST:
        raise ValueError(f"conv2d: `stride` is {stride} and `padding` {padding}; they are from 1 and from 0 to {MOST}")
    rows, columns = (side(x.shape[axis], weight.shape[axis], stride, padding) for axis in (2, 3))
    if min(rows, columns) < 1 or max(rows, columns, *x.shape[2:]) > MOST or max(weight.shape[2:]) > 1024:
        planes = f"planes of {x.shape[2]} x {x.shape[3]} and filters of {weight.shape[2]} x {weight.shape[3]}"
        raise ValueError(f"conv2d: {planes} give {rows} x {columns}; sides are from 1 to {MOST}, of filters to 1024")
    if x.shape[0] * rows * columns > POSITIONS or x.shape[0] * x.shape[2] * x.shape[3] > POSITIONS:
        raise ValueError(f"conv2d: the {x.shape[0]} samples have too many pixels; at most {POSITIONS} are supported")
    return rows, columns


def conv2d(x: Any, weight: Any, bias: Any = None, stride: int = 1, padding: int = 0) -> Any:
    """The convolution of planes with filters, as `torch.nn.functional.conv2d` of one group.

    x: `[B, C, H, W]`, bf16 or f16, best `channels_last`, since others are copied; weight: `[O, C, R, S]` and bias: `[O]` or
    None, of the dtype of `x`. Sides of at most 16384, of filters 1024, and at most 2^30 pixels. Returns `[B, O, (H + 2 *
    padding - R) // stride + 1, ...]`, `channels_last`; summed in f32, rounded once. Gradients: of all tensors, those of weight
    and bias in the same order at every call. ValueError for other dtypes, shapes and sizes."""
    rows, columns = _outputs(x, weight, bias, stride, padding)
    samples, outputs = x.shape[0], weight.shape[0]
    added = weight.new_zeros((outputs,)) if bias is None else bias
    if x.numel() == 0 or weight.numel() == 0:
        raise ValueError("conv2d: `x` or `weight` has no elements; at least 1 is needed")
    planes, filters = pixels(x.permute(0, 2, 3, 1)), whole(weight.permute(0, 2, 3, 1))
    if serves(x, weight, stride):
        return convolved(planes, filters, whole(added), rows, columns, stride, padding).permute(0, 3, 1, 2)
    out = _conv2d()(planes, filters, whole(added), rows, columns, stride, 1, 1, -padding)
    return out.reshape(samples, rows, columns, outputs).permute(0, 3, 1, 2)
