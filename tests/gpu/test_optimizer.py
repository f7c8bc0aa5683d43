"""`tilec.kernels.AdamW` is `torch.optim.AdamW`, state and schedules included."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

pytestmark = pytest.mark.gpu


def _parameters(torch: Any) -> list[Any]:
    torch.manual_seed(0)
    return [torch.randn(shape, device="cuda").requires_grad_() for shape in ((37, 3), (4096,), (), (128, 64))]


def _trained(torch: Any, optimizer: type, steps: int, reload_at: int) -> list[Any]:
    """Parameters after some steps, before one of which the state goes through a new optimizer."""
    parameters = _parameters(torch)
    groups = [{"params": parameters[:2], "weight_decay": 0.1}, {"params": parameters[2:], "lr": 3e-3}]
    used = optimizer(groups, lr=1e-2)
    schedule = torch.optim.lr_scheduler.ExponentialLR(used, 0.9)
    for step in range(steps):
        if step == reload_at:
            state = used.state_dict()
            used = optimizer(groups, lr=1e-2)
            used.load_state_dict(state)
            schedule.optimizer = used
        for number, one in enumerate(parameters):
            one.grad = None if (step + number) % 4 == 0 else torch.sin(one.detach() * (step + 1))
        used.step()
        schedule.step()
    return parameters


def test_steps_are_those_of_pytorch() -> None:
    torch: Any = importlib.import_module("torch")
    kernels = importlib.import_module("tilec.kernels")
    found = _trained(torch, kernels.AdamW, 7, 3)
    expected = _trained(torch, torch.optim.AdamW, 7, 3)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-6, atol=2e-7)


def test_a_parameter_with_other_memory_is_stepped() -> None:
    torch: Any = importlib.import_module("torch")
    kernels = importlib.import_module("tilec.kernels")
    parameter = torch.ones(8, device="cuda").requires_grad_()
    optimizer = kernels.AdamW([parameter], lr=0.5)
    for _ in range(2):
        parameter.data = torch.zeros(8, device="cuda")
        parameter.grad = torch.ones(8, device="cuda")
        optimizer.step()
        assert bool((parameter < -0.4).all())
