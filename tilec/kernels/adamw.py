"""`torch.optim.AdamW` whose steps are kernels of this library."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from typing import Any, Final

from tilec.ir.types import DTYPES
from tilec.kernels.optimizers import launch_step, repeated_step, step_numbers, written
from tilec.kernels.shapes import flat
from tilec.runtime import DriverError

LARGEST: Final = DTYPES["f32"].largest
"""Bound of the numbers that are written without the checks of a call."""
_torch: Any = sys.modules.get("torch")
_Base: Any = getattr(getattr(_torch, "optim", None), "Optimizer", object)


@dataclass(slots=True)
class _Kept:
    """What is kept of a parameter between steps: its means, it and them along one axis, and, once a step has launched, its
    launches and the dtype of its gradient. Loading a state, or assigning to `p.data`, gives them other memory."""

    mean: Any
    square: Any
    flat: tuple[Any, Any, Any]
    addresses: tuple[int, int, int]
    shape: Any
    launch: Any = None
    dtype: Any = None

    def fits(self, p: Any, mean: Any, square: Any) -> bool:
        """Whether the parameter and its means lie where they did."""
        return (
            mean is self.mean and square is self.square and p.shape == self.shape
            and (p.data_ptr(), mean.data_ptr(), square.data_ptr()) == self.addresses
        )  # fmt: skip


class AdamW(_Base):  # its base is PyTorch's, which has no types here
    """`torch.optim.AdamW` with the same defaults and state: learning-rate schedules, parameter groups and `state_dict` work.

    Parameters are f32 or bf16 without gaps, gradients f32 or bf16, the means of gradients and of their squares f32. A step is a
    launch for each parameter that has a gradient. Its arguments are kept between steps, so that from the second step on a
    launch costs the host little: only the address of the gradient and the numbers of the step are checked and written.
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
        self._kept: dict[Any, _Kept] = {}
        self._pytorch: dict[str, Any] = importlib.import_module("tilec.ops.torch_op").helpers()

    def step(self, closure: Any = None) -> Any:
        """One step of every parameter that has a gradient. Returns the result of `closure`, which computes the gradients."""
        loss = None
        if closure is not None:
            with _torch.enable_grad():
                loss = closure()
        with _torch.no_grad():
            device = self._plain_device()
            for group in self.param_groups:
                self._step_group(group, device)
        return loss

    def _plain_device(self) -> int | None:
        """The current device, whose launches may be repeated; None while anything traces or transforms the step, and before
        CUDA is used."""
        ask = self._pytorch
        if not _torch.cuda.is_initialized():
            return None
        is_plain = not (ask["compiling"]() or ask["dispatched"]() or ask["tracing"]()) and ask["transformed"]() is None
        return ask["device"]() if is_plain else None

    def _step_group(self, group: dict[str, Any], device: int | None) -> None:
        number, numbers, are_plain = 0, (), False
        stream = None if device is None else self._pytorch["stream"](device)
        changed: list[Any] = []
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
                are_plain = all(type(one) in (float, int) and abs(one) <= LARGEST for one in numbers)
            kept = self._kept_of(p, state)
            if stream is not None and are_plain and self._repeats(kept, grad, device, stream, numbers):
                changed += kept.flat
            else:
                self._launch(kept, grad, device, numbers)
        if changed:
            self._pytorch["written"](tuple(changed))

    def _kept_of(self, p: Any, state: dict[str, Any]) -> _Kept:
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        kept = self._kept.get(p)
        if kept is None or not kept.fits(p, mean, square):
            addresses = p.data_ptr(), mean.data_ptr(), square.data_ptr()
            kept = self._kept[p] = _Kept(mean, square, written(p, p, mean, square), addresses, p.shape)
        return kept

    def _repeats(self, kept: _Kept, grad: Any, device: int | None, stream: int, numbers: tuple[float, ...]) -> bool:
        """Launches a step as the last one, if the gradient is a plain tensor like that one's and of the current device."""
        if (
            kept.launch is None or type(grad) is not _torch.Tensor or grad.dtype is not kept.dtype
            or grad.shape != kept.shape or grad.get_device() != device or grad.layout is not _torch.strided
            or not grad.is_contiguous() or grad.is_neg()
        ):  # fmt: skip
            return False
        try:
            kept.launch(stream, grad.data_ptr(), numbers)
        except DriverError:  # nothing was enqueued: a call of the op sets the context of a new thread, or raises again
            return False
        return True

    def _launch(self, kept: _Kept, grad: Any, device: int | None, numbers: tuple[float, ...]) -> None:
        """A step as a call of the op, whose launch is then kept."""
        one = flat("grad", grad)
        launch_step(*kept.flat, one, numbers)
        if device is not None and grad.get_device() == device and grad.numel():
            kept.launch, kept.dtype = repeated_step(*kept.flat, one, numbers), grad.dtype
