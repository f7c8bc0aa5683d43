"""Routes of mixtures of experts: the sort of choices by expert, rows in that order, and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.library.interpreted import interpreted, tensor
from tests.library.prebuilt import is_prebuilt, slope
from tilec.kernels import routing
from tilec.kernels.source import reference_routing as reference


def _random(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Any:
    return tensor(np.random.default_rng(seed).normal(size=shape), dtype)


def _choices(tokens: int, k: int, experts: int, seed: int = 0) -> Any:
    """Each token's experts, of which some are none."""
    return tensor(np.random.default_rng(seed).integers(-1, experts + 1, (tokens, k)), np.int32)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 300), st.integers(1, 4), st.integers(1, 512), st.integers(0, 99))
def test_choices_are_sorted_by_expert(tokens: int, k: int, experts: int, seed: int) -> None:
    choices = _choices(tokens, k, experts, seed)
    with interpreted() as library:
        order, slots, ends = library.module.sort_by_expert(choices, experts)
        assert all(is_prebuilt(call.kernel, call.constants) for call in library.calls)
    flat = choices.reshape(-1)
    inside = (flat >= 0) & (flat < experts)
    count = int(inside.sum())
    expected = np.argsort(np.where(inside, flat, experts), kind="stable")[:count]
    np.testing.assert_array_equal(order[:count], expected)
    assert (order[count:] == -1).all() and slots.shape == choices.shape
    np.testing.assert_array_equal(slots.reshape(-1)[expected], np.arange(count))
    assert (slots.reshape(-1)[~inside] == -1).all()
    np.testing.assert_array_equal(ends, np.cumsum(np.bincount(flat[inside], minlength=experts)))


@pytest.mark.parametrize("experts", [8, 100, 200, 512])
@pytest.mark.parametrize("normalize", [True, False])
def test_routes(experts: int, normalize: bool) -> None:
    logits = tensor(np.random.default_rng(0).integers(-20, 20, (2, 9, experts)) / 4, np.float32)
    logits[0, 0] = 0
    with interpreted() as library:
        weights, chosen = library.module.moe_route(logits, 5, normalize)
        assert all(is_prebuilt(call.kernel, call.constants) for call in library.calls)
    expected, which = reference.moe_route(logits.reshape(18, experts), 5, int(normalize))
    np.testing.assert_array_equal(chosen.reshape(18, 5), which)
    np.testing.assert_allclose(weights.reshape(18, 5), expected, rtol=1e-6)
    assert (weights.dtype, chosen.dtype) == (np.float32, np.int32)


@pytest.mark.parametrize("normalize", [0, 1])
def test_the_gradient_of_routes(normalize: int) -> None:
    logits, dout = _random(7, 70), _random(7, 6, seed=1)
    with interpreted() as library:
        output = library.ops["moe_route"](logits, 6, normalize)
        dlogits, *rest = library.gradient("moe_route", (logits, 6, normalize), output, dout, None)
        assert all(is_prebuilt(call.kernel, call.constants) for call in library.calls)
    direction = _random(7, 70, seed=2).astype(np.float64)
    wide = logits.astype(np.float64)
    expected = slope(lambda at: (reference.moe_route(at, 6, normalize)[0] * dout).sum(), wide, direction, 1e-6)
    np.testing.assert_allclose((dlogits * direction).sum(), expected, rtol=1e-5)
    weights, experts = reference.moe_route(wide, 6, normalize)
    np.testing.assert_allclose(
        dlogits, reference.moe_route_backward(dout, wide, weights, experts, normalize), rtol=1e-4, atol=1e-6
    )
    assert rest == [None, None]


@pytest.mark.parametrize("width", [40, 1033])
@pytest.mark.parametrize(("dtype", "of_weights"), [("float32", "float32"), ("float16", "float32"), ("float16", "float16")])
def test_rows_go_to_experts_and_come_back(width: int, dtype: str, of_weights: str) -> None:
    choices = _choices(11, 3, 6)
    x, weights = _random(11, width, dtype=dtype), _random(11, 3, dtype=of_weights, seed=1)
    bound = 1e-5 if dtype == "float32" else 4e-3
    with interpreted() as library:
        order, slots, ends = library.module.sort_by_expert(choices, 6)
        rows = library.module.moe_permute(x, order, slots)
        back = library.module.moe_combine(rows, weights, order, slots)
        assert all(is_prebuilt(call.kernel, call.constants) for call in library.calls)
    count = ends[-1]
    np.testing.assert_array_equal(rows[:count], x[order[:count] // 3])
    assert not rows[count:].any()
    kept = (choices >= 0) & (choices < 6)
    expected = np.where(kept, weights.astype(np.float64), 0).sum(axis=1, keepdims=True) * x.astype(np.float64)
    np.testing.assert_allclose(back, expected, rtol=bound, atol=bound)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_gradients_of_rows(dtype: str) -> None:
    """Those of both functions are each other's, by the references."""
    choices = _choices(9, 2, 4)
    x, weights, dout = _random(9, 24, dtype=dtype), _random(9, 2, seed=1), _random(18, 24, dtype=dtype, seed=2)
    bound = 1e-5 if dtype == "float32" else 4e-3
    with interpreted() as library:
        order, slots, _ = library.module.sort_by_expert(choices, 4)
        inputs = (x, weights, order, slots)
        found = library.gradient("expand_rows", inputs, library.ops["expand_rows"](*inputs), dout)
        assert found[2:] == (None, None)
        np.testing.assert_allclose(found[0], reference.combine_rows(dout, weights, slots), rtol=bound, atol=bound)
        np.testing.assert_allclose(found[1], reference.combine_rows_dots(x, dout, slots), rtol=1e-4, atol=1e-4)
        inputs = (dout, weights, slots, order)
        found = library.gradient("combine_rows", inputs, library.ops["combine_rows"](*inputs), x)
        assert found[2:] == (None, None)
        np.testing.assert_allclose(found[0], reference.expand_rows(x, weights, order), rtol=bound, atol=bound)
        np.testing.assert_allclose(found[1], reference.combine_rows_dots(x, dout, slots), rtol=1e-4, atol=1e-4)


def test_references_of_gradients_are_slopes() -> None:
    random = np.random.default_rng(3)
    placed = reference.combine_rows_inputs(random, {"N": 12, "T": 6, "K": 2})
    x, weights, dout = random.normal(size=(6, 5)), random.normal(size=(6, 2)), random.normal(size=(12, 5))

    def value(rows: Any, factors: Any) -> Any:
        return (reference.expand_rows(rows, factors, placed["order"]) * dout).sum()

    to_x, to_weights = random.normal(size=(6, 5)), random.normal(size=(6, 2))
    found = slope(lambda at: value(at, weights), x, to_x), slope(lambda at: value(x, at), weights, to_weights)
    np.testing.assert_allclose((reference.combine_rows(dout, weights, placed["slots"]) * to_x).sum(), found[0], rtol=1e-8)
    dots = reference.combine_rows_dots(x, dout, placed["slots"])
    np.testing.assert_allclose((dots * to_weights).sum(), found[1], rtol=1e-8)


def test_nothing_and_wrong_arguments() -> None:
    choices = _choices(4, 2, 6)
    x, weights = _random(4, 8), _random(4, 2)
    with interpreted() as library:
        module = library.module
        order, slots, ends = module.sort_by_expert(choices[:0], 6)
        assert (order.shape, slots.shape, ends.tolist()) == ((0,), (0, 2), [0] * 6)
        assert module.moe_permute(x[:0], order, slots).shape == (0, 8)
        assert module.moe_combine(x[:0], weights[:0], order, slots).shape == (0, 8)
        order, slots, _ = module.sort_by_expert(choices, 6)
        with pytest.raises(ValueError, match=r"moe_route: `k` is 9; it is from 1 to 16, and not more than the 8 experts"):
            module.moe_route(x, 9)
        with pytest.raises(ValueError, match=r"moe_route: the last axis of `logits` has 513 elements; at most 512"):
            module.moe_route(_random(1, routing.EXPERTS[-1] + 1), 2)
        with pytest.raises(ValueError, match=r"sort_by_expert: `experts` is 513; it is from 1 to 512"):
            module.sort_by_expert(choices, 513)
        with pytest.raises(ValueError, match=r"moe_permute: `order` has the shape \[8\] and `slots` \[4, 2\]; of 3 tokens"):
            module.moe_permute(x[:3], order, slots)
        with pytest.raises(ValueError, match=r"moe_combine: `y` has the shape \[4, 8\] and `weights` \[4, 2\]"):
            module.moe_combine(x, weights, order, slots)
