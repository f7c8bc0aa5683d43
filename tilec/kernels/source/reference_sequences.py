"""The causal convolution and the selective scan in NumPy and float64. Functions and parameters are named like kernels and
theirs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
Float = NDArray[np.float64]


def _wide(*arrays: Array) -> list[Float]:
    return [array.astype(np.float64) for array in arrays]


def _shifted(x: Float, by: int) -> Float:
    """At each token what is `by` tokens before it, or after it if that is below 0; 0 where there is none."""
    found = np.zeros_like(x)
    if by > 0:
        found[:, by:] = x[:, :-by]
    elif by < 0:
        found[:, :by] = x[:, -by:]
    else:
        found[:] = x
    return found


def _sums(x: Float, weight: Float, bias: Float) -> Float:
    taps = weight.shape[1]
    return bias + sum((_shifted(x, taps - 1 - k) * weight[:, k] for k in range(taps)), np.zeros_like(x))


def causal_conv1d(x: Array, weight: Array, bias: Array, silu: int) -> Float:
    y = _sums(*_wide(x, weight, bias))
    return y / (1 + np.exp(-y)) if silu else y


def causal_conv1d_slope(dout: Array, x: Array, weight: Array, bias: Array, silu: int) -> Float:
    y = _sums(*_wide(x, weight, bias))
    s = 1 / (1 + np.exp(-y))
    return dout.astype(np.float64) * (s * (1 + y * (1 - s)) if silu else 1)


def causal_conv1d_backward(dy: Array, x: Array, weight: Array, P: int, BT: int) -> tuple[Float, Float, Float]:
    slope, tokens, factors = _wide(dy, x, weight)
    taps = factors.shape[1]
    dx = sum((_shifted(slope, k - (taps - 1)) * factors[:, k] for k in range(taps)), np.zeros_like(slope))
    each = np.stack([slope * _shifted(tokens, taps - 1 - k) for k in range(taps)], axis=2)
    return dx, _stripes(each, P, BT), _stripes(slope, P, BT)


def _stripes(x: Float, P: int, BT: int) -> Float:
    """Sums over the tokens of tiles p, p + P and so on of BT tokens, of all sequences."""
    tiles = [one[begin : begin + BT].sum(axis=0) for one in x for begin in range(0, x.shape[1], BT)]
    return np.stack([np.sum(tiles[p::P], axis=0) if tiles[p::P] else np.zeros(x.shape[2:]) for p in range(P)])


def _steps(u: Float, delta: Float, a: Float, b: Float) -> tuple[Float, Float]:
    """What states are multiplied by at each token, and what is added."""
    return np.exp(delta[..., None] * a), (delta * u)[..., None] * b[:, :, None]


def _states(decay: Float, added: Float) -> Float:
    """The states before each token, and after the last one."""
    found = np.zeros((decay.shape[0], decay.shape[1] + 1, *decay.shape[2:]))
    for t in range(decay.shape[1]):
        found[:, t + 1] = decay[:, t] * found[:, t] + added[:, t]
    return found


def selective_scan(u: Array, delta: Array, a: Array, b: Array, c: Array, skip: Array, BT: int) -> tuple[Float, Float]:
    x, time, rate, inputs, outputs, through = _wide(u, delta, a, b, c, skip)
    states = _states(*_steps(x, time, rate, inputs))
    return (states[:, 1:] * outputs[:, :, None]).sum(axis=3) + through * x, states[:, :-1:BT]


def selective_scan_backward(
    dy: Array, u: Array, delta: Array, a: Array, b: Array, c: Array, skip: Array, BD: int
) -> tuple[Float, Float, Float, Float, Float, Float]:
    """`states` are computed again."""
    slope, x, time, rate, inputs, outputs, through = _wide(dy, u, delta, a, b, c, skip)
    decay, added = _steps(x, time, rate, inputs)
    states = _states(decay, added)
    g = np.zeros_like(decay)
    for t in reversed(range(decay.shape[1])):
        g[:, t] = slope[:, t, :, None] * outputs[:, t, None]
        if t + 1 < decay.shape[1]:
            g[:, t] += decay[:, t + 1] * g[:, t + 1]
    kept = decay * states[:, :-1]
    du = (g * inputs[:, :, None]).sum(axis=3) * time + slope * through
    ddelta = (g * (kept * rate + x[..., None] * inputs[:, :, None])).sum(axis=3)
    da = (g * kept * time[..., None]).sum(axis=1)
    db, dc = g * (time * x)[..., None], slope[..., None] * states[:, 1:]
    return du, ddelta, da, _groups(db, BD), _groups(dc, BD), (slope * x).sum(axis=1)


def _groups(x: Float, BD: int) -> Float:
    """Sums over groups of BD channels."""
    return np.stack([x[:, :, begin : begin + BD].sum(axis=2) for begin in range(0, x.shape[2], BD)])


def selective_scan_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    """Times of about one half, and states that decay."""
    delta = np.log1p(np.exp(rng.standard_normal((dims["B"], dims["T"], dims["D"])) - 0.5))
    return {"delta": delta, "a": -np.exp(rng.standard_normal((dims["D"], dims["N"])) * 0.5)}


def selective_scan_backward_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    """In steps of an eighth, which f16 and bf16 have: `states` are those of what the kernel reads."""
    drawn = selective_scan_inputs(rng, dims)
    u, b = (np.round(rng.standard_normal((dims["B"], dims["T"], dims[axis])) * 8) / 8 for axis in "DN")
    delta = np.round(np.asarray(drawn["delta"], np.float64) * 8) / 8
    a = np.asarray(drawn["a"], np.float32).astype(np.float64)
    return {"delta": delta, "a": a, "u": u, "b": b, "states": _states(*_steps(u, delta, a, b))[:, : -1 : dims["BT"]]}
