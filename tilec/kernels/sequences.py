"""Functions along the tokens of sequences: the causal convolution and the selective scan of Mamba, with gradients.

Gradients of what all tokens share come from two kernels: one sums over the tokens of a block, the other adds those sums. So
they are the same at every call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tilec.kernels.norms import summed
from tilec.kernels.ops import library_op, multiple, without_gradient
from tilec.kernels.shapes import whole

TAPS: Final = 4
"""Weights of a channel of a convolution."""
STATES: Final = 16
"""States of a channel of a scan."""
CHANNELS: Final = {"causal_conv1d": 64, "selective_scan": 16}
"""Those of a block."""
CHUNK: Final = 8
"""Tokens of a scan that a block takes at a time, and whose states before are stored."""
MOST_SEQUENCES: Final = 65535
"""Blocks of an axis of a grid but the first."""
MOST_TOKENS: Final = 1 << 30
"""Tokens of all sequences."""
BLOCKS: Final = 264
"""Two for each multiprocessor of an H100 or H200: tokens are divided into stripes until so many blocks have work."""


def _conv_tile(known: Mapping[str, Any]) -> dict[str, int]:
    return {"W": TAPS, "BT": 32, "BD": CHANNELS["causal_conv1d"], "MULTIPLE": multiple(known["D"])}


def _stripes(known: Mapping[str, Any]) -> dict[str, Any]:
    """As many as there are tiles, and no more than keep all multiprocessors busy."""
    groups = -(-known["D"] // CHANNELS["causal_conv1d"])
    return {"P": max(1, min(known["B"] * -(-known["T"] // 32), BLOCKS // groups))}


def _scan_tile(known: Mapping[str, Any]) -> dict[str, int]:
    return {"BT": CHUNK, "BD": CHANNELS["selective_scan"], "STATES": STATES, "MULTIPLE": multiple(known["D"])}


def _chunks(known: Mapping[str, Any]) -> dict[str, Any]:
    return {"P": -(-known["T"] // CHUNK)}


def _groups(known: Mapping[str, Any]) -> dict[str, Any]:
    return {"G": -(-known["D"] // CHANNELS["selective_scan"])}


def _keep_conv(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.silu = inputs
    ctx.save_for_backward(*tensors)


def _conv_gradient(ctx: Any, dout: Any) -> tuple[Any, ...]:
    x, weight, bias = ctx.saved_tensors
    dy = _causal_conv1d_slope()(whole(dout), x, weight, bias, ctx.silu)
    dx, of_weight, of_bias = _causal_conv1d_backward()(dy, x, weight)
    return dx, whole(summed(of_weight, weight).T), summed(of_bias, bias), None


def _keep_scan(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, Any]) -> None:
    without_gradient(ctx, output[1])
    ctx.save_for_backward(*inputs, output[1])


def _scan_gradient(ctx: Any, dy: Any, of_states: Any) -> tuple[Any, ...]:
    du, ddelta, *parts = _selective_scan_backward()(whole(dy), *ctx.saved_tensors)
    shared = ctx.saved_tensors[2:6]
    return du, ddelta, *(summed(part, tensor) for part, tensor in zip(parts, shared, strict=True))


_causal_conv1d = library_op("causal_conv1d", _conv_tile, gradient=(_conv_gradient, _keep_conv))
_causal_conv1d_slope = library_op("causal_conv1d_slope", _conv_tile)
_causal_conv1d_backward = library_op("causal_conv1d_backward", _conv_tile, dims=_stripes)
_selective_scan = library_op("selective_scan", _scan_tile, dims=_chunks, gradient=(_scan_gradient, _keep_scan))
_selective_scan_backward = library_op("selective_scan_backward", _scan_tile, dims=_groups)


def _sequences(function: str, name: str, x: Any) -> tuple[int, int, int]:
    """The shape of sequences; ValueError for another number of axes, and for more of them or of tokens."""
    if x.ndim != 3:
        raise ValueError(f"{function}: `{name}` has {x.ndim} axes; it is `[B, T, D]`")
    count, length, channels = x.shape
    if count > MOST_SEQUENCES or count * length > MOST_TOKENS:
        limit = f"at most {MOST_SEQUENCES} sequences and {MOST_TOKENS} tokens in all are supported"
        raise ValueError(f"{function}: `{name}` has {count} sequences of {length} tokens; {limit}")
    return count, length, channels


def _nothing(x: Any, *others: Any) -> Any:
    """0 in the shape of `x`, with a gradient of 0 for all tensors."""
    total = x.reshape(-1)[:0].sum()
    for other in others:
        total = total + other.reshape(-1)[:0].sum()
    return x.new_zeros(tuple(x.shape)) + total


def causal_conv1d(x: Any, weight: Any, bias: Any, silu: bool = True) -> Any:
    """A convolution of each channel along the tokens: token t is computed from tokens t - 3 to t; then SiLU, if asked for.

    x: `[B, T, D]`, bf16, f16 or f32, at most 65535 sequences and 2^30 tokens in all; weight: `[D, 4]` and bias: `[D]`, of the
    dtype of `x`. Returns `[B, T, D]`: `y = bias[d] + sum(weight[d, k] * x[b, t + k - 3, d] for k in range(4))`, or `y *
    sigmoid(y)`, where tokens before the first are 0; in f32, rounded once. Gradients: of all tensors. ValueError for other
    shapes."""
    _, _, channels = _sequences("causal_conv1d", "x", x)
    for name, tensor, shape in (("weight", weight, (channels, TAPS)), ("bias", bias, (channels,))):
        if tuple(tensor.shape) != shape:
            raise ValueError(f"causal_conv1d: `{name}` has the shape {list(tensor.shape)}; it is {list(shape)}")
    if x.numel() == 0:
        return _nothing(x, weight, bias)
    return _causal_conv1d()(whole(x), whole(weight), whole(bias), int(silu))


def selective_scan(u: Any, delta: Any, a: Any, b: Any, c: Any, skip: Any) -> Any:
    """The recurrence of Mamba (Gu and Dao, 2023): each channel has N states, which decay and grow by what the tokens say.

    u, delta: `[B, T, D]`, bf16, f16 or f32, at most 65535 sequences and 2^30 tokens in all; delta is the time from token to
    token, after softplus. a: `[D, N]`, f32, N at most 16, below 0 for states that decay; b, c: `[B, T, N]`, of the dtype of
    `u`; skip: `[D]`, f32. Returns y, `[B, T, D]`: `h[t] = exp(delta[t] * a) * h[t - 1] + delta[t] * u[t] * b[t]`, `y[t] =
    sum(h[t] * c[t]) + skip * u[t]`, in f32, rounded once. Gradients: of all tensors; the states before every eighth token are
    stored for them. ValueError for other shapes."""
    count, length, channels = _sequences("selective_scan", "u", u)
    states = a.shape[-1]
    wanted = {
        "delta": (delta, (count, length, channels)), "a": (a, (channels, states)), "b": (b, (count, length, states)),
        "c": (c, (count, length, states)), "skip": (skip, (channels,)),
    }  # fmt: skip
    for name, (tensor, shape) in wanted.items():
        if tuple(tensor.shape) != shape:
            raise ValueError(f"selective_scan: `{name}` has the shape {list(tensor.shape)}; it is {list(shape)}")
    if not 1 <= states <= STATES:
        raise ValueError(f"selective_scan: `a` has {states} states of a channel; it is from 1 to {STATES}")
    if u.numel() == 0:
        return _nothing(u, delta, a, b, c, skip)
    y, _states = _selective_scan()(*(whole(one) for one in (u, delta, a, b, c, skip)))
    return y
