"""`rope` rotates as Hugging Face's Llama and Qwen3 do; its gradient is the rotation back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.library.interpreted import interpreted, tensor
from tests.library.prebuilt import is_prebuilt, references, slope
from tilec.kernels import positions

REFERENCES = references()


def _tables(leading: tuple[int, ...], size: int) -> tuple[Any, Any]:
    frequencies = 10000.0 ** (-np.arange(size // 2) / (size // 2))
    phases = np.arange(np.prod(leading)).reshape(leading)[..., None] * frequencies
    return tensor(np.cos(phases), np.float32), tensor(np.sin(phases), np.float32)


def _rotated(x: Any, cos: Any, sin: Any) -> Any:
    """`x * cos + rotate_half(x) * sin`, with both halves of the tables equal."""
    wide, half = x.astype(np.float64), x.shape[-1] // 2
    both = [np.concatenate((table, table), axis=-1)[..., None, :] for table in (cos, sin)]
    return wide * both[0] + np.concatenate((-wide[..., half:], wide[..., :half]), axis=-1) * both[1]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(0, 3), max_size=2), st.integers(1, 6), st.sampled_from([1, 8, 9, 33]), st.sampled_from([64, 96]),
    st.booleans(), st.sampled_from(["float32", "float16"]),
)  # fmt: skip
def test_results_and_gradient(sequences: Any, count: int, heads: int, size: int, own: bool, dtype: str) -> None:
    random = np.random.default_rng(count)
    cos, sin = _tables((*sequences, count) if own else (count,), size)
    x, dout = (tensor(random.normal(size=(*sequences, count, heads, size)), dtype) for _ in range(2))
    bound = 1e-5 if dtype == "float32" else 4e-3
    with interpreted() as library:
        out = library.module.rope(x, cos, sin)
        shape = (-1, count, heads, size) if cos.ndim == 2 and sequences else (1, -1, heads, size)
        if x.size:
            inputs = (x.reshape(shape), cos.reshape(-1, size // 2), sin.reshape(-1, size // 2), 1.0)
            dx, *rest = library.gradient("rope", inputs, out, dout.reshape(shape))
            np.testing.assert_allclose(dx.reshape(x.shape), _rotated(dout, cos, -sin), atol=bound)
            assert rest == [None, None, None]
        assert all(is_prebuilt(call.kernel, call.constants) for call in library.calls) and library.calls
    assert out.shape == x.shape and out.dtype == x.dtype
    np.testing.assert_allclose(out, _rotated(x, cos, sin), atol=bound)


@pytest.mark.parametrize("size", positions.HEAD_SIZES)
def test_every_size_of_heads_is_prebuilt(size: int) -> None:
    strided = tensor(np.ones((3, 2 * size, 4)), np.float16)[..., 1:3].transpose(0, 2, 1).reshape(3, 4, size)
    with interpreted() as library:
        out = library.module.rope(strided, *_tables((3,), size))
        assert out.shape == (3, 4, size) and all(is_prebuilt("rope", call.constants) for call in library.calls)


def test_the_reference_of_the_gradient_is_the_slope() -> None:
    random = np.random.default_rng(3)
    x, dout, direction = random.normal(size=(3, 2, 5, 3, 8))
    angles = random.normal(size=(5, 4))
    cos, sin = np.cos(angles), np.sin(angles)
    found = slope(lambda at: (REFERENCES.rope(at, cos, sin, 1.0) * dout).sum(), x, direction)
    np.testing.assert_allclose((REFERENCES.rope(dout, cos, sin, -1.0) * direction).sum(), found, rtol=1e-9)
    np.testing.assert_allclose(REFERENCES.rope(x, cos, sin, 1.0), _rotated(x, cos, sin), rtol=1e-12)


def test_wrong_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    x = tensor(np.zeros((2, 3, 4, 64)), np.float32)
    cos, sin = _tables((3,), 64)
    with interpreted() as library:
        rope = library.module.rope
        with pytest.raises(ValueError, match=r"`x` has the shape \[2, 3, 4, 32\].* D one of 64, 96, 128, 256"):
            rope(x[..., :32], cos, sin)
        with pytest.raises(ValueError, match=r"`cos` has the shape \[2, 32\]; it is \[3, 32\] or \[2, 3, 32\]"):
            rope(x, cos[:2], sin[:2])
        with pytest.raises(ValueError, match=r"`sin` has the shape \[2, 3, 32\]"):
            rope(x, cos, tensor(np.stack((sin, sin))))
        with pytest.raises(ValueError, match="`x` has 65536 sequences; with one table they are at most 65535"):
            rope(tensor(np.zeros((65536, 1, 1, 64)), np.float16), cos[:1], sin[:1])
