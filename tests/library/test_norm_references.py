"""References of the gradients of softmax and norms agree with finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilec.kernels.source import reference_norms as reference


def _differences(value: Callable[[], float], array: Any) -> Any:
    """The gradient of `value` with respect to `array`, by central differences."""
    found = np.zeros_like(array)
    for index in np.ndindex(array.shape):
        kept = array[index]
        array[index] = kept + 1e-5
        above = value()
        array[index] = kept - 1e-5
        found[index] = (above - value()) / 2e-5
        array[index] = kept
    return found


def _random(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


def test_the_reference_of_the_gradient_of_softmax_is_one() -> None:
    x, dout = _random(0, 3, 5), _random(1, 3, 5)
    wanted = _differences(lambda: float((reference.softmax(x) * dout).sum()), x)
    np.testing.assert_allclose(reference.softmax_backward(dout, reference.softmax(x)), wanted, atol=1e-8)


@pytest.mark.parametrize("stripes", [1, 2, 4])
def test_references_of_gradients_of_norms_are_gradients(stripes: int) -> None:
    x, weight, bias, dout = _random(0, 4, 6), _random(1, 6), _random(2, 6), _random(3, 4, 6)
    _, mean, rstd = reference.layer_norm(x, weight, bias, 0.1)
    dx, sums = reference.layer_norm_backward(dout, x, weight, mean, rstd, stripes)
    assert sums.shape == (stripes, 2, 6)
    for array, found in ((x, dx), (weight, sums[:, 0].sum(axis=0)), (bias, sums[:, 1].sum(axis=0))):
        wanted = _differences(lambda: float((reference.layer_norm(x, weight, bias, 0.1)[0] * dout).sum()), array)
        np.testing.assert_allclose(found, wanted, atol=1e-8)
    _, rstd = reference.rms_norm(x, weight, 0.1)
    dx, sums = reference.rms_norm_backward(dout, x, weight, rstd, stripes)
    for array, found in ((x, dx), (weight, reference.sum_partials(sums))):
        wanted = _differences(lambda: float((reference.rms_norm(x, weight, 0.1)[0] * dout).sum()), array)
        np.testing.assert_allclose(found, wanted, atol=1e-8)


def test_the_reference_of_the_gradient_of_group_norm_is_one() -> None:
    x, weight, bias, dout = _random(0, 2, 2, 3, 4), _random(1, 2, 3), _random(2, 2, 3), _random(3, 2, 2, 3, 4)
    _, mean, rstd = reference.group_norm(x, weight, bias, 0.1)
    dx, sums = reference.group_norm_backward(dout, x, weight, mean, rstd)
    for array, found in ((x, dx), (weight, sums[:, 0].sum(axis=0)), (bias, sums[:, 1].sum(axis=0))):
        wanted = _differences(lambda: float((reference.group_norm(x, weight, bias, 0.1)[0] * dout).sum()), array)
        np.testing.assert_allclose(found, wanted, atol=1e-8)
