"""`adamw_` is a step of `torch.optim.AdamW`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.library.interpreted import interpreted, tensor
from tests.library.prebuilt import is_prebuilt


def _stepped(p: Any, gradients: list[Any], lr: float, betas: tuple[float, float], eps: float, decay: float) -> Any:
    """The algorithm as PyTorch's documentation has it, in float64."""
    m, v = np.zeros(p.shape), np.zeros(p.shape)
    p = p.astype(np.float64)
    for step, gradient in enumerate(gradients, 1):
        g = gradient.astype(np.float64)
        p = p - lr * decay * p
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g * g
        p = p - lr * (m / (1 - betas[0] ** step)) / (np.sqrt(v / (1 - betas[1] ** step)) + eps)
    return p, m, v


@pytest.mark.parametrize("shape", [(), (1,), (37, 3), (0, 4), (2049,)])
def test_steps_are_those_of_the_algorithm(shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    p = tensor(random.normal(size=shape), np.float32)
    gradients = [tensor(random.normal(size=shape) * 10.0**power, np.float32) for power in (-6, 0, 2)]
    m, v = tensor(np.zeros(shape), np.float32), tensor(np.zeros(shape), np.float32)
    options = {"lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1}
    expected = _stepped(p, gradients, 0.01, (0.9, 0.999), 1e-8, 0.1)
    with interpreted() as library:
        for step, gradient in enumerate(gradients, 1):
            assert library.module.adamw_(p, gradient, m, v, step, **options) is None
        assert all(is_prebuilt("adamw", call.constants) for call in library.calls) and len(library.calls) == 3
    for found, wanted in zip((p, m, v), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=1e-12)


def test_defaults_are_those_of_pytorch() -> None:
    p, g, m, v = (tensor([value], np.float32) for value in (1.0, 0.5, 0.0, 0.0))
    expected, _, _ = _stepped(p, [g], 1e-3, (0.9, 0.999), 1e-8, 1e-2)
    with interpreted() as library:
        library.module.adamw_(p, g, m, v, 1)
    np.testing.assert_allclose(p, expected, rtol=1e-7)


def test_wrong_arguments() -> None:
    p, g, m, v = (tensor(np.zeros((4, 4)), np.float32) for _ in range(4))
    with interpreted() as library:
        adamw_ = library.module.adamw_
        with pytest.raises(ValueError, match="`step` is 0; the first step is 1"):
            adamw_(p, g, m, v, 0)
        with pytest.raises(ValueError, match=r"`m` has the shape \[4\]; it has that of `p`, \[4, 4\]"):
            adamw_(p, g, m[0], v, 1)
        with pytest.raises(ValueError, match="`v` has gaps"):
            adamw_(p, g, m, v.T, 1)
        adamw_(p, g.T, m, v, 1)
