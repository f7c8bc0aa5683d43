"""Softmax and norms, with their gradients.

Functions take any leading axes, bf16, f16 or f32, and compute in f32. A gradient of a norm comes from two kernels: one computes
that of the input, and for each of some stripes of rows those of weight and bias, the other adds stripes up. So gradients are
the same at every call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tilec.kernels.ops import library_op, multiple, without_gradient
from tilec.kernels.shapes import rows_of, shaped, whole

LONGEST: Final = 8192
"""Elements of a row of a norm, which is one tile."""
LONGEST_TILE: Final = {8: 4096, 1: 1024}
"""Elements of a row of a softmax that is one tile, by what its length is a multiple of; longer rows have several tiles."""
MOST_SAMPLES: Final = 65535
"""Blocks of the second axis of a grid."""
MULTIPROCESSORS: Final = 132
"""Those of an H100 or H200. Stripes fill them; on other chips results are the same."""
FEW: Final = 16
"""Most partial sums that a block adds one by one."""
RESIDENT: Final = {(256, 8): 16, (1024, 8): 4, (2048, 8): 2, (1024, 1): 2}
"""Blocks of a norm's gradient on a multiprocessor, by tile and multiple; otherwise 1. `build.toml` has schedules for them."""


def _tile(extent: int, *extents: int) -> int:
    """The first of `extents` that a row of `extent` elements fits in, or else the last."""
    return next((tile for tile in extents if extent <= tile), extents[-1])


def _softmax_tile(known: Mapping[str, Any]) -> dict[str, int]:
    tile = _tile(known["N"], 256, 1024, 2048, 4096)
    return {"ROWS": {256: 16, 1024: 4}.get(tile, 1), "BLOCK": tile, "MULTIPLE": multiple(known["N"])}


def _long_tile(known: Mapping[str, Any]) -> dict[str, int]:
    return {"BLOCK": 8192, "MULTIPLE": multiple(known["N"])}


def _norm_tile(known: Mapping[str, Any]) -> dict[str, int]:
    whole = multiple(known["N"])
    tile = _tile(known["N"], 256, 1024, 2048, 4096, LONGEST) if whole == 8 else _tile(known["N"], 1024, LONGEST)
    return {"ROWS": 8 if tile == 256 else 1, "BLOCK": tile, "MULTIPLE": whole}


def _gradient_tile(known: Mapping[str, Any]) -> dict[str, Any]:
    forward = _norm_tile(known)
    tile, whole = forward["BLOCK"], forward["MULTIPLE"]
    return {"BLOCK": tile, "AHEAD": whole == 8 and tile < LONGEST, "MULTIPLE": whole}


def _stripes(known: Mapping[str, Any]) -> dict[str, Any]:
    """As many as there are blocks at a time, and no more than rows."""
    constants = _gradient_tile(known)
    return {"P": min(known["T"], MULTIPROCESSORS * RESIDENT.get((constants["BLOCK"], constants["MULTIPLE"]), 1))}


def _sum_tile(known: Mapping[str, Any]) -> dict[str, int]:
    """A tile of 512 rows would be nearly empty where there are no more than `FEW`."""
    rows, block = (1, 512) if known["P"] <= FEW else (512, 16)
    return {"ROWS": rows, "BLOCK": block, "MULTIPLE": multiple(known["N"])}


def _group_tile(known: Mapping[str, Any]) -> dict[str, int]:
    whole = multiple(known["L"])
    channels, tile = (4, 1024) if whole == 8 and known["L"] > 256 else (32, 128)
    return {"CHANNELS": channels, "BLOCK": tile, "MULTIPLE": whole}


def _keep_softmax(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(output)


def _softmax_gradient(ctx: Any, dout: Any) -> Any:
    (out,) = ctx.saved_tensors
    return _softmax_backward()(whole(dout), out)


def _long_gradient(ctx: Any, dout: Any) -> Any:
    (out,) = ctx.saved_tensors
    return _softmax_long_backward()(whole(dout), out)


def _keep_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    """Input, weight and the statistics of rows, which have no gradient."""
    without_gradient(ctx, *output[1:])
    ctx.save_for_backward(inputs[0], inputs[1], *output[1:])


def summed(partial: Any, weight: Any) -> Any:
    """Sums over the first axis, of the dtype of `weight`."""
    if partial.ndim == 2:  # of one parameter
        _sum_partials()(partial, out := weight.new_empty((partial.shape[1],)))
        return out
    rows = partial.reshape(partial.shape[0], -1)
    _sum_partials()(rows, out := weight.new_empty((rows.shape[1],)))
    return out.reshape(partial.shape[1:])


def _layer_norm_gradient(ctx: Any, dout: Any, *of_statistics: Any) -> tuple[Any, ...]:
    x, weight, mean, rstd = ctx.saved_tensors
    dx, partial = _layer_norm_backward()(whole(dout), x, weight, mean, rstd)
    of_weight, of_bias = summed(partial, weight)
    return dx, of_weight, of_bias, None


def _rms_norm_gradient(ctx: Any, dout: Any, *of_statistics: Any) -> tuple[Any, ...]:
    x, weight, rstd = ctx.saved_tensors
    dx, partial = _rms_norm_backward()(whole(dout), x, weight, rstd)
    return dx, summed(partial, weight), None


def _group_norm_gradient(ctx: Any, dout: Any, *of_statistics: Any) -> tuple[Any, ...]:
    x, weight, mean, rstd = ctx.saved_tensors
    dx, partial = _group_norm_backward()(whole(dout), x, weight, mean, rstd)
    of_weight, of_bias = summed(partial, weight)
    return dx, of_weight, of_bias, None


_softmax = library_op("softmax", _softmax_tile, gradient=(_softmax_gradient, _keep_softmax))
_softmax_backward = library_op("softmax_backward", _softmax_tile)
_softmax_long = library_op("softmax_long", _long_tile, gradient=(_long_gradient, _keep_softmax))
_softmax_long_backward = library_op("softmax_long_backward", _long_tile)
_layer_norm = library_op("layer_norm", _norm_tile, gradient=(_layer_norm_gradient, _keep_norm))
_layer_norm_backward = library_op("layer_norm_backward", _gradient_tile, dims=_stripes)
_rms_norm = library_op("rms_norm", _norm_tile, gradient=(_rms_norm_gradient, _keep_norm))
_rms_norm_backward = library_op("rms_norm_backward", _gradient_tile, dims=_stripes)
_group_norm = library_op("group_norm", _group_tile, gradient=(_group_norm_gradient, _keep_norm))
_group_norm_backward = library_op("group_norm_backward", _group_tile)
_sum_partials = library_op("sum_partials", _sum_tile, mutates=["out"])


def softmax(x: Any) -> Any:
    """Softmax over the last axis.

    x: [..., N], bf16, f16 or f32, N of any size. Returns the same shape and dtype; computed in f32, rounded once. The gradient
    is that of the result as rounded, as in PyTorch.
    """
    if x.numel() == 0:
        return x.clone()
    rows = rows_of("softmax", x)
    length = rows.shape[1]
    op = _softmax if length <= LONGEST_TILE[multiple(length)] else _softmax_long
    return shaped(op()(rows), x.shape)


def layer_norm(x: Any, weight: Any, bias: Any, eps: float = 1e-5) -> Any:
    """`(x - mean) / sqrt(var + eps) * weight + bias` over the last axis, with the variance of all N elements.

    x: [..., N] with N at most 8192, bf16, f16 or f32; weight, bias: [N], of the dtype of `x`. Returns the shape and dtype of
    `x`; computed in f32, rounded once. Gradients of weight and bias are summed in f32, rounded once. ValueError if N is larger.
    """
    if x.numel() == 0:
        return x * weight + bias
    out, _mean, _rstd = _layer_norm()(rows_of("layer_norm", x, LONGEST), whole(weight), whole(bias), eps)
    return shaped(out, x.shape)


def rms_norm(x: Any, weight: Any, eps: float = 1e-6) -> Any:
    """`x / sqrt(mean(x^2) + eps) * weight` over the last axis.

    x: [..., N] with N at most 8192, bf16, f16 or f32; weight: [N], of the dtype of `x`. Returns the shape and dtype of `x`;
    computed in f32, rounded once. The gradient of weight is summed in f32, rounded once. ValueError if N is larger.
    """
    if x.numel() == 0:
        return x * weight
    out, _rstd = _rms_norm()(rows_of("rms_norm", x, LONGEST), whole(weight), eps)
    return shaped(out, x.shape)


def group_norm(x: Any, groups: int, weight: Any, bias: Any, eps: float = 1e-5) -> Any:
    """Group norm: `(x - mean) / sqrt(var + eps) * weight + bias`, with mean and variance of each group of channels of a sample.

    x: [B, C, ...] with B at most 65535 and C a multiple of `groups`, bf16, f16 or f32; weight, bias: [C], of the dtype of `x`.
    Returns the shape and dtype of `x`; computed in f32, rounded once. Gradients of weight and bias are summed in f32, rounded
    once. ValueError for other sizes.
    """
    shape = x.shape
    if len(shape) < 2:
        raise ValueError(f"group_norm: `x` has {len(shape)} axes; at least 2 are needed")
    samples, channels = shape[0], shape[1]
    if groups < 1 or channels % groups != 0:
        raise ValueError(f"group_norm: `groups` is {groups}; a divisor of the {channels} channels of `x` is needed")
    if samples > MOST_SAMPLES:
        raise ValueError(f"group_norm: `x` has {samples} samples; at most {MOST_SAMPLES} are supported")
    if x.numel() == 0:
        ones = (1,) * (len(shape) - 2)
        return x * weight.reshape(channels, *ones) + bias.reshape(channels, *ones)
    split = (groups, channels // groups)
    grouped = whole(x.reshape(samples, *split, -1))
    out, _mean, _rstd = _group_norm()(grouped, whole(weight.reshape(split)), whole(bias.reshape(split)), eps)
    return out.reshape(shape)
