"""What a check remembers, and what it may not."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from tests.library.interpreted import interpreted, tensor
from tilec.kernels import shapes


def test_a_check_is_made_once_for_equal_arguments_and_errors_are_never_remembered() -> None:
    seen: list[Any] = []

    @shapes.remembered
    def check(*given: Any) -> int:
        seen.append(given)
        if given[0] == "wrong":
            raise ValueError("wrong")
        return len(given)

    for _ in range(3):
        assert (check((1, 2), "f32"), check((1, 2), "f16"), check((2, 1), "f32", 3)) == (2, 2, 3)
    assert len(seen) == 3
    for _ in range(2):
        with pytest.raises(ValueError, match="wrong"):
            check("wrong")
    assert len(seen) == 5
    assert check([1]) == check([1]) == 1 and len(seen) == 7  # without a hash, as symbolic sizes
    for number in range(shapes.MOST_REMEMBERED + 2):
        check(number)
    check((1, 2), "f32")
    assert len(seen) == 7 + shapes.MOST_REMEMBERED + 3


def test_a_traced_check_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    check = shapes.remembered(lambda extent: seen.append(extent) or True)
    monkeypatch.setattr(shapes, "_traced", lambda: True)
    assert check(1) and check(1) and seen == [1, 1]
    monkeypatch.setattr(shapes, "_traced", lambda: False)
    assert check(1) and check(1) and len(seen) == 3


def test_a_remembered_shape_does_not_hide_gaps_or_addresses() -> None:
    """After a call of the same shapes: tensors with gaps, and those between vectors, are still copied for the kernel."""
    random = np.random.default_rng(0)
    wide = random.normal(size=(2, 4, 2, 128)).astype(np.float32)
    angles = random.normal(size=(4, 32)).astype(np.float32)
    cos, sin = tensor(np.cos(angles), np.float32), tensor(np.sin(angles), np.float32)
    whole = tensor(np.ascontiguousarray(wide[..., :64]), np.float32)
    memory = tensor(np.zeros(whole.size + 1), np.float32)
    moved = memory[1:].reshape(whole.shape)
    moved[...] = whole
    with interpreted() as library:
        expected = library.module.rope(whole, cos, sin)
        for x in (tensor(wide, np.float32)[..., :64], moved):
            np.testing.assert_array_equal(library.module.rope(x, cos, sin), expected)
        with pytest.raises(ValueError, match="`sin` has the shape"):
            library.module.rope(whole, cos, sin[:3])
        with pytest.raises(ValueError, match="`x` has the shape"):
            library.module.rope(whole[..., :62], cos, sin)


def test_a_remembered_attention_still_checks_strides_and_dtypes() -> None:
    random = np.random.default_rng(1)
    q, k = (tensor(random.normal(size=(1, 4, heads, 64)), np.float16) for heads in (2, 1))
    gaps = tensor(np.repeat(k, 3, axis=3), np.float16)[..., ::3]
    with interpreted() as library:
        expected = library.module.attention(q, k, k)
        np.testing.assert_array_equal(library.module.attention(q, gaps, gaps), expected)
        for dtypes in ((np.float32, np.float16), (np.float16, np.float32)):
            given = [one.astype(dtype) for one, dtype in zip((q, k), dtypes, strict=True)]
            with pytest.raises(ValueError, match="takes bfloat16 or float16, one for"):
                library.module.attention(*given, k)


def test_a_second_call_makes_no_check_of_shapes_again() -> None:
    """Functions of Python in the modules of the library, by name."""
    random = np.random.default_rng(2)
    q, k = (tensor(random.normal(size=(1, 4, heads, 64)), np.float16) for heads in (2, 1))
    with interpreted() as library:
        library.module.attention(q, k, k)
        called: list[str] = []
        sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
        try:
            library.module.attention(q, k, k)
        finally:
            sys.setprofile(None)
    assert "checked_heads" in called and "_checked" not in called
