"""The selection from many candidates, and the predictions of their costs."""

from __future__ import annotations

import numpy as np
import pytest

from tilec.tuning.fit import Measured, fit

SHAPES = np.array([1, 3, 7, 20, 55, 140, 300, 900], dtype=float)


def measured(rates: list[tuple[float, float]], alike: list[object] | None = None, noise: float = 0.0) -> Measured:
    """Candidates that take `start + rate * size`, exactly or up to an error."""
    random = np.random.default_rng(0)
    times = np.array([start + rate * SHAPES for start, rate in rates])
    terms = np.array([np.stack([np.ones_like(SHAPES), SHAPES], axis=1) for _ in rates])
    return Measured(times * (1 + noise * random.uniform(-1, 1, times.shape)), terms, alike or list(range(len(rates))))


def test_few_candidates_serve_and_their_costs_pick_the_fastest() -> None:
    """Of five, one is best for small sizes and one for large; the others never are."""
    found = fit(measured([(9, 9.0), (1, 3.0), (20, 20.0), (50, 0.5), (60, 0.6)]), keep=8)
    assert sorted(found.kept) == [1, 3]
    assert found.regret == (0, 0)
    assert found.held_out == (0, 0)
    for number, weights in zip(found.kept, found.weights, strict=True):
        assert weights == pytest.approx({1: (1, 3.0), 3: (50, 0.5)}[number], rel=0.2)


def test_noise_costs_no_more_than_it_is() -> None:
    found = fit(measured([(1, 3.0), (50, 0.5), (20, 1.4)], noise=0.03), keep=8)
    assert found.held_out is not None
    assert found.held_out[1] < 0.15
    assert all(weight >= 0 for row in found.weights for weight in row)


def test_at_most_one_of_those_that_are_one_artifact() -> None:
    found = fit(measured([(1, 3.0), (50, 0.5), (2, 2.9)], alike=["a", "a", "b"]), keep=8)
    assert len({["a", "a", "b"][one] for one in found.kept}) == len(found.kept)
    assert 1 in found.kept
    assert 0 not in found.kept


def test_no_more_than_may_be_kept() -> None:
    rates = [(start, 30 / start) for start in (1.0, 5.0, 25.0, 125.0)]
    assert len(fit(measured(rates), keep=8).kept) > 2
    assert len(fit(measured(rates), keep=2).kept) == 2


def test_one_shape_is_enough_for_a_choice_and_none_is_not() -> None:
    one = Measured(np.array([[3.0], [2.0]]), np.array([[[1.0, 5.0]], [[1.0, 5.0]]]), [0, 1])
    found = fit(one, keep=8)
    assert found.kept == (1,)
    assert found.held_out is None
    with pytest.raises(ValueError, match="no candidate"):
        fit(Measured(np.zeros((0, 0)), np.zeros((0, 0, 2)), []), keep=8)
