"""`causal_conv1d` and `selective_scan` are their definitions, with gradients that are slopes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.library.interpreted import Array, interpreted, tensor
from tests.library.prebuilt import is_prebuilt, slope
from tilec.kernels import sequences
from tilec.kernels.source import reference_sequences as reference


def _random(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Any:
    return tensor(np.random.default_rng(seed).normal(size=shape), dtype)


def _scanned(count: int, length: int, channels: int, states: int, dtype: Any = np.float32) -> dict[str, Any]:
    """Arguments of a scan, and a gradient of its result."""
    delta = np.log1p(np.exp(_random(count, length, channels, seed=1) - 0.5))
    return {
        "u": _random(count, length, channels, dtype=dtype), "delta": tensor(delta, dtype),
        "a": tensor(-np.exp(_random(channels, states, seed=2)), np.float32),
        "b": _random(count, length, states, dtype=dtype, seed=3), "c": _random(count, length, states, dtype=dtype, seed=4),
        "skip": _random(channels, seed=5), "dy": _random(count, length, channels, dtype=dtype, seed=6),
    }  # fmt: skip


@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 3), st.integers(1, 70), st.sampled_from([1, 8, 67, 72]), st.sampled_from(["float32", "float16"]),
    st.integers(0, 1),
)  # fmt: skip
def test_convolutions_and_their_gradients(count: int, length: int, channels: int, dtype: str, silu: int) -> None:
    x, dout = (_random(count, length, channels, dtype=dtype, seed=seed) for seed in range(2))
    weight, bias = _random(channels, 4, dtype=dtype, seed=2), _random(channels, dtype=dtype, seed=3)
    bound = 3e-5 if dtype == "float32" else 2e-2
    with interpreted() as library:
        out = library.module.causal_conv1d(x, weight, bias, bool(silu))
        inputs = (x, weight, bias, silu)
        dx, dweight, dbias, rest = library.gradient("causal_conv1d", inputs, out, dout)
        assert all(is_prebuilt(call.kernel, call.constants) for call in library.calls)
    np.testing.assert_allclose(out, reference.causal_conv1d(*inputs), rtol=bound, atol=bound)
    dy = reference.causal_conv1d_slope(dout, *inputs)
    expected = reference.causal_conv1d_backward(dy, x, weight, 1, 32)
    np.testing.assert_allclose(dx, expected[0], rtol=bound, atol=bound)
    np.testing.assert_allclose(dweight, expected[1][0].T, rtol=bound, atol=4 * bound)
    np.testing.assert_allclose(dbias, expected[2][0], rtol=bound, atol=4 * bound)
    assert rest is None and {one.dtype for one in (out, dx, dweight, dbias)} == {x.dtype}


def test_references_of_gradients_of_convolutions_are_slopes() -> None:
    shapes = {"x": (2, 9, 3), "weight": (3, 4), "bias": (3,)}
    random = np.random.default_rng(0)
    given_arrays = {name: random.normal(size=shape) for name, shape in shapes.items()}
    dout = random.normal(size=(2, 9, 3))
    dy = reference.causal_conv1d_slope(dout, **given_arrays, silu=1)
    dx, dweight, dbias = reference.causal_conv1d_backward(dy, given_arrays["x"], given_arrays["weight"], 1, 4)
    for name, gradient in (("x", dx), ("weight", dweight[0].T), ("bias", dbias[0])):
        direction = random.normal(size=shapes[name])

        def value(at: Any, name: str = name) -> Any:
            return (reference.causal_conv1d(**{**given_arrays, name: at}, silu=1) * dout).sum()

        found = slope(value, given_arrays[name], direction)
        np.testing.assert_allclose((gradient * direction).sum(), found, rtol=1e-7)


@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 2), st.integers(1, 40), st.sampled_from([1, 8, 19]), st.sampled_from([1, 5, 16]),
    st.sampled_from(["float32", "float16"]),
)  # fmt: skip
def test_scans_and_their_gradients(count: int, length: int, channels: int, states: int, dtype: str) -> None:
    args = _scanned(count, length, channels, states, dtype)
    dy = args.pop("dy")
    bound = 1e-4 if dtype == "float32" else 2e-2
    with interpreted() as library:
        y = library.module.selective_scan(**args)
        inputs = tuple(args.values())
        output = library.ops["selective_scan"](*inputs)
        found = library.gradient("selective_scan", inputs, output, dy, None)
        assert all(is_prebuilt(call.kernel, call.constants) for call in library.calls)
    np.testing.assert_allclose(y, reference.selective_scan(*inputs, BT=1)[0], rtol=bound, atol=bound)
    du, ddelta, da, db, dc, dskip = reference.selective_scan_backward(dy, *inputs, BD=channels)
    expected = {"u": du, "delta": ddelta, "a": da.sum(axis=0), "b": db[0], "c": dc[0], "skip": dskip.sum(axis=0)}
    for (name, wanted), one in zip(expected.items(), found, strict=True):
        assert one.dtype == args[name].dtype
        np.testing.assert_allclose(one, wanted, rtol=bound, atol=bound * max(1, abs(wanted).max()), err_msg=name)


def test_references_of_gradients_of_scans_are_slopes() -> None:
    args = {name: one.astype(np.float64) for name, one in _scanned(2, 7, 3, 4).items()}
    dy, random = args.pop("dy"), np.random.default_rng(9)
    du, ddelta, da, db, dc, dskip = reference.selective_scan_backward(dy, **args, BD=3)
    gradients = {"u": du, "delta": ddelta, "a": da.sum(axis=0), "b": db[0], "c": dc[0], "skip": dskip.sum(axis=0)}
    for name, gradient in gradients.items():
        direction = random.normal(size=args[name].shape)

        def value(at: Any, name: str = name) -> Any:
            return (reference.selective_scan(**{**args, name: at}, BT=1)[0] * dy).sum()

        np.testing.assert_allclose((gradient * direction).sum(), slope(value, args[name], direction), rtol=1e-7, err_msg=name)


def test_nothing_and_wrong_arguments() -> None:
    x, weight, bias = _random(2, 5, 6), _random(6, 4), _random(6)
    args = _scanned(2, 5, 6, 3)
    del args["dy"]
    with interpreted() as library:
        module = library.module
        assert module.causal_conv1d(x[:, :0], weight, bias).shape == (2, 0, 6)
        nothing = {name: one[:0] if name in ("u", "delta", "b", "c") else one for name, one in args.items()}
        assert module.selective_scan(**nothing).shape == (0, 5, 6)
        with pytest.raises(ValueError, match=r"causal_conv1d: `weight` has the shape \[6, 3\]; it is \[6, 4\]"):
            module.causal_conv1d(x, weight[:, :3], bias)
        with pytest.raises(ValueError, match=r"causal_conv1d: `x` has 2 axes; it is `\[B, T, D\]`"):
            module.causal_conv1d(x[0], weight, bias)
        longer = np.broadcast_to(x[:1, :1], (1, sequences.MOST_TOKENS + 1, 6)).view(Array)
        with pytest.raises(ValueError, match="causal_conv1d: `x` has 1 sequences of 1073741825 tokens; at most"):
            module.causal_conv1d(longer, weight, bias)
        with pytest.raises(ValueError, match=r"selective_scan: `c` has the shape \[2, 5, 2\]; it is \[2, 5, 3\]"):
            module.selective_scan(**{**args, "c": args["c"][:, :, :2]})
        with pytest.raises(ValueError, match="selective_scan: `a` has 17 states of a channel; it is from 1 to 16"):
            many = _scanned(2, 5, 6, 17)
            del many["dy"]
            module.selective_scan(**many)
