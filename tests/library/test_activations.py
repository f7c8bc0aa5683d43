"""`swiglu` and `gelu` are those of PyTorch, gradients and other shapes included."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.library.interpreted import interpreted, tensor
from tests.library.prebuilt import is_prebuilt, references, slope
from tilec.kernels import shapes

REFERENCES = references()
KERNELS = {"swiglu", "swiglu_backward", "gelu", "gelu_backward"}


def _silu(x: Any) -> Any:
    return x / (1 + np.exp(-x))


def _gelu(x: Any) -> Any:
    return np.array([value * 0.5 * (1 + math.erf(value / math.sqrt(2))) for value in x.flat]).reshape(x.shape)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=0, max_size=3), st.sampled_from(["float32", "float16"]), st.booleans())
def test_results_and_gradients(shape: list[int], dtype: str, strided: bool) -> None:
    random = np.random.default_rng(len(shape))
    gate, up, dout = (tensor(random.normal(size=shape) * 3, dtype) for _ in range(3))
    if strided and shape:
        gate = tensor(np.repeat(gate, 2, axis=0))[::2]
    flat = [array.reshape(-1).contiguous() for array in (gate, up, dout)]
    wide = [array.astype(np.float64) for array in flat]
    bound = {"rtol": 1e-5, "atol": 1e-6} if dtype == "float32" else {"rtol": 1e-2, "atol": 1e-3}
    with interpreted() as library:
        gated, curved = library.module.swiglu(gate, up), library.module.gelu(gate)
        dgate, dup = library.gradient("swiglu", (flat[0], flat[1]), gated, flat[2])
        dx = library.gradient("gelu", (flat[0],), curved, flat[2])
        assert {call.kernel for call in library.calls} == KERNELS
        assert all(is_prebuilt(call.kernel, call.constants) for call in library.calls)
    assert gated.shape == curved.shape == tuple(shape) and gated.dtype == dgate.dtype == dup.dtype == dx.dtype == gate.dtype
    np.testing.assert_allclose(gated.reshape(-1), _silu(wide[0]) * wide[1], **bound)
    np.testing.assert_allclose(curved.reshape(-1), _gelu(wide[0]), **bound)
    np.testing.assert_allclose(dgate, wide[2] * wide[1] * slope(_silu, wide[0], 1), **bound)
    np.testing.assert_allclose(dup, wide[2] * _silu(wide[0]), **bound)
    np.testing.assert_allclose(dx, wide[2] * slope(_gelu, wide[0], 1), **bound)


def test_the_references_of_gradients_are_slopes() -> None:
    gate, up, dout = np.random.default_rng(2).normal(size=(3, 200)) * 4
    dgate, dup = REFERENCES.swiglu_backward(gate, up, dout)
    np.testing.assert_allclose(dgate, dout * slope(lambda at: REFERENCES.swiglu(at, up), gate, 1), rtol=1e-7, atol=1e-10)
    np.testing.assert_allclose(dup, dout * slope(lambda at: REFERENCES.swiglu(gate, at), up, 1), rtol=1e-7, atol=1e-10)
    np.testing.assert_allclose(
        REFERENCES.gelu_backward(gate, dout), dout * slope(REFERENCES.gelu, gate, 1), rtol=1e-7, atol=1e-10
    )


def test_large_arguments_do_not_overflow() -> None:
    x = tensor([-3e38, -1e4, -100.0, 0.0, 100.0, 1e4], np.float32)
    one = tensor(np.ones(6), np.float32)
    with interpreted() as library:
        assert library.module.gelu(x).tolist() == [0, 0, 0, 0, 100, 1e4]
        np.testing.assert_allclose(library.module.swiglu(x, one), [0, 0, 0, 0, 100, 1e4], atol=1e-30)
        dgate, _ = library.gradient("swiglu", (x, one), None, one)
        np.testing.assert_allclose(dgate, [0, 0, 0, 0.5, 1, 1], atol=1e-30)
        np.testing.assert_allclose(library.gradient("gelu", (x,), None, one), [0, 0, 0, 0.5, 1, 1], atol=1e-30)


def test_wrong_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    x = tensor(np.zeros((2, 3)), np.float32)
    with (
        interpreted() as library,
        pytest.raises(ValueError, match=r"`up` has the shape \[3\]; it has that of `gate`, \[2, 3\]"),
    ):
        library.module.swiglu(x, x[0])
    monkeypatch.setattr(shapes, "MAX_DIM", 5)
    with pytest.raises(ValueError, match="`gate` has 6 elements; a kernel takes at most 5"):
        shapes.flat("gate", x)
