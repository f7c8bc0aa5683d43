"""`torch.optim.AdamW` whose steps are kernels of this library."""

from __future__ import annotations

import sys
from typing import Any

from tilec.kernels.optimizers import launch_step, step_numbers, written
from tilec.kernels.shapes import flat

_torch: Any = sys.modules.get("torch")
_Base: Any = getattr(getattr(_torch, "optim", None), "Optimizer", object)


class AdamW(_Base):  # its base is PyTorch's, which has no types here
    """`torch.optim.AdamW` with the same defaults and state: learning-rate schedules, parameter groups and `state_dict` work.

    Parameters are f32 or bf16 without gaps, gradients f32 or bf16, the means of gradients and of their squares f32. A step is a
    launch for each parameter that has a gradient, of views that are kept between steps, so that it costs the host little.
    RuntimeError unless PyTorch was imported first; ValueError as for `adamw_`."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        if _Base is object:
            raise RuntimeError("AdamW needs PyTorch: `import torch` before `tilec.kernels`")
        _Base.__init__(self, params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self._views: dict[Any, tuple[Any, Any, Any]] = {}

    def step(self, closure: Any = None) -> Any:
        """One step of every parameter that has a gradient. Returns the result of `closure`, which computes the gradients."""
        loss = None
        if closure is not None:
            with _torch.enable_grad():
                loss = closure()
        with _torch.no_grad():
            for group in self.param_groups:
                self._step_group(group)
        return loss

    def _step_group(self, group: dict[str, Any]) -> None:
        number, numbers = 0, ()
        for p in group["params"]:
            grad = p.grad
            if grad is None:
                continue
            state = self.state[p]
            if not state:
                means = (_torch.zeros_like(p, dtype=_torch.float32) for _ in range(2))
                state["step"], (state["exp_avg"], state["exp_avg_sq"]) = 0, means
            state["step"] += 1
            if state["step"] != number:
                number = int(state["step"])
                numbers = step_numbers(number, group["lr"], group["betas"], group["eps"], group["weight_decay"])
            launch_step(*self._views_of(p, state), flat("grad", grad), numbers)

    def _views_of(self, p: Any, state: dict[str, Any]) -> tuple[Any, Any, Any]:
        """The parameter and its means, flat. Loading a state, or assigning to `p.data`, gives them other memory."""
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        views = self._views.get(p)
        if views is None or (p.data_ptr(), mean.data_ptr(), square.data_ptr()) != tuple(view.data_ptr() for view in views):
            views = self._views[p] = written(p, p, mean, square)
        return views
