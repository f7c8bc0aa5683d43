"""`AdamW` keeps the launches of parameters between steps, and none that a check could be missed by: stubs of PyTorch and of the
driver, the op's kernel written by hand."""

from __future__ import annotations

import contextlib
import importlib
import struct
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.ops import prebuilt
from tests.ops.copying_driver import CopyingDriver
from tests.ops.fake_torch import FakeTorch, Parameter, Tensor
from tilec.runtime import Device, LaunchError

NUMBERS = ("weight1", "weight2", "keep", "step_size", "scale", "eps")


class Optimizer:
    """`torch.optim.Optimizer`: groups and state."""

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        self.param_groups = [defaults | {"params": list(params)}]
        self.state: Any = defaultdict(dict)


def _adamw() -> dict[str, Any]:
    tensors = [prebuilt.tensor("p", "inout", "f32", "N"), prebuilt.tensor("grad", "in", "f32", "N"),
               prebuilt.tensor("m", "inout", "f32", "N"), prebuilt.tensor("v", "inout", "f32", "N")]  # fmt: skip
    scalars = [{"name": name, "dtype": "f32"} for name in NUMBERS]
    pairs = [["p", "grad"], ["p", "m"], ["p", "v"], ["grad", "m"], ["grad", "v"], ["m", "v"]]
    constants = {"E": "f32", "G": "f32", "BLOCK": 2048}
    return prebuilt.manifest("adamw", constants, tensors, scalars, ["N"], [["//", ["+", "N", 2047], 2048]], pairs)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """The stub of PyTorch with what an optimizer uses, and the library imported anew on it; `torch.driver` records."""
    driver = CopyingDriver()
    device = Device(driver)
    fake: Any = FakeTorch(device)
    fake.driver, fake.optim = driver, SimpleNamespace(Optimizer=Optimizer)
    fake.cuda.is_initialized = lambda: True
    fake.no_grad = fake.enable_grad = contextlib.nullcontext
    fake.zeros_like = lambda p, dtype: fake.empty(*p.shape, dtype=dtype)
    for name, method in {
        "detach": lambda self: self.view(self.shape), "numel": lambda self: self.array.nbytes // 4,
        "ndim": property(lambda self: len(self.shape)), "element_size": lambda self: 4,
        "reshape": lambda self, *shape: self.view(*shape),
    }.items():  # fmt: skip
        monkeypatch.setattr(Tensor, name, method, raising=False)
    monkeypatch.setenv("TILEC_PREBUILT", str(prebuilt.write(tmp_path, _adamw())))
    monkeypatch.setitem(sys.modules, "torch", fake)
    before = {name: module for name, module in sys.modules.items() if name.startswith(("tilec.kernels", "tilec.ops.torch_op"))}
    for name in before:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(importlib.import_module("tilec.ops.torch_op"), "current_device", lambda: device)
    yield fake
    for name in [name for name in sys.modules if name.startswith(("tilec.kernels", "tilec.ops.torch_op"))]:
        del sys.modules[name]


def _optimizer(torch: Any, count: int = 1) -> tuple[Any, list[Any]]:
    parameters: list[Any] = []
    for _ in range(count):
        made = torch.empty(8, 8, dtype="float32")
        parameters.append(Parameter(made.array, made.dtype, made.shape, made.device))
        parameters[-1].grad = torch.empty(8, 8, dtype="float32")
    return importlib.import_module("tilec.kernels.adamw").AdamW(parameters), parameters


def _sent(torch: Any) -> tuple[list[int], list[float]]:
    """Addresses and numbers of the last launch."""
    sent = torch.driver.sent[-1]
    return [struct.unpack("<Q", one)[0] for one in sent[:4]], [struct.unpack("<f", one)[0] for one in sent[5:]]


def _op_calls(torch: Any, optimizer: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    module, calls = sys.modules["tilec.kernels.adamw"], list[Any]()
    inner: Any = module.launch_step  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "launch_step", lambda *args: calls.append(args) or inner(*args))
    return calls


def test_later_steps_send_the_gradient_and_the_numbers_of_the_step(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer, (p,) = _optimizer(torch)
    calls = _op_calls(torch, optimizer, monkeypatch)
    for step in range(1, 5):
        p.grad = torch.empty(8, 8, dtype="float32")
        optimizer.step()
        state = optimizer.state[p]
        pointers, numbers = _sent(torch)
        assert pointers == [p.data_ptr(), p.grad.data_ptr(), state["exp_avg"].data_ptr(), state["exp_avg_sq"].data_ptr()]
        assert numbers[3] == pytest.approx(1e-3 / (1 - 0.9**step)) and state["step"] == step
        assert torch.driver.launches[-1].stream == 7
    assert len(calls) == 1 and len(torch.driver.launches) == 4
    kept = optimizer._kept[p]
    assert [one.version for one in kept.flat] == [4, 4, 4]  # each step marks what it writes


@pytest.mark.parametrize("where", ["the parameter", "a mean", "the other mean"])
@pytest.mark.parametrize("offset", [0, 64])
def test_a_gradient_that_overlaps_is_refused_at_a_later_step(torch: Any, where: str, offset: int) -> None:
    optimizer, (p,) = _optimizer(torch)
    for _ in range(2):
        optimizer.step()
    state = optimizer.state[p]
    tensor = {"the parameter": p, "a mean": state["exp_avg"], "the other mean": state["exp_avg_sq"]}[where]
    pointer = tensor.data_ptr() + offset
    p.grad = torch.empty(8, 8, dtype="float32")
    p.grad.data_ptr = lambda: pointer
    with pytest.raises(LaunchError, match="E0909"):
        optimizer.step()
    assert len(torch.driver.launches) == 2


@pytest.mark.parametrize(("pointer", "code"), [((1 << 20) + 4, "E0908"), (0, "E0914")])
def test_the_address_of_a_gradient_is_checked_at_a_later_step(torch: Any, pointer: int, code: str) -> None:
    optimizer, (p,) = _optimizer(torch)
    for _ in range(2):
        optimizer.step()
    p.grad.data_ptr = lambda: pointer
    with pytest.raises(LaunchError, match=code):
        optimizer.step()
    assert len(torch.driver.launches) == 2


def _moved(torch: Any, optimizer: Any, p: Any) -> None:
    p.array = torch.empty(8, 8, dtype="float32").array


def _loaded(torch: Any, optimizer: Any, p: Any) -> None:
    optimizer.state[p]["exp_avg"] = torch.empty(8, 8, dtype="float32")


def _moved_mean(torch: Any, optimizer: Any, p: Any) -> None:
    optimizer.state[p]["exp_avg_sq"].array = torch.empty(8, 8, dtype="float32").array


@pytest.mark.parametrize("change", [_moved, _loaded, _moved_mean])
def test_other_memory_is_a_call_of_the_op(torch: Any, change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer, (p,) = _optimizer(torch)
    for _ in range(2):
        optimizer.step()
    calls = _op_calls(torch, optimizer, monkeypatch)
    change(torch, optimizer, p)
    for _ in range(3):
        optimizer.step()
        state = optimizer.state[p]
        assert _sent(torch)[0] == [
            p.data_ptr(), p.grad.data_ptr(), state["exp_avg"].data_ptr(), state["exp_avg_sq"].data_ptr(),
        ]  # fmt: skip
    assert len(calls) == 1


@pytest.mark.parametrize("state", [{"compiling": True}, {"modes": 1}])
def test_a_traced_step_is_a_call_of_the_op(torch: Any, state: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer, _ = _optimizer(torch)
    for _ in range(2):
        optimizer.step()
    calls = _op_calls(torch, optimizer, monkeypatch)
    for name, value in state.items():
        setattr(torch, name, value)
    optimizer.step()
    assert len(calls) == 1


def test_a_step_before_cuda_is_used_asks_for_no_device(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As without a GPU, where tensors are PyTorch's of the CPU and an implementation of the op is a test's."""
    optimizer, _ = _optimizer(torch)
    torch.cuda.is_initialized, optimizer._pytorch["device"] = lambda: False, None
    calls = _op_calls(torch, optimizer, monkeypatch)
    for _ in range(3):
        optimizer.step()
    assert len(calls) == 3


def test_unusual_gradients_and_numbers_are_checked_by_the_op(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer, (p,) = _optimizer(torch)
    for _ in range(2):
        optimizer.step()
    calls = _op_calls(torch, optimizer, monkeypatch)
    optimizer.param_groups[0]["lr"] = 1e39
    with pytest.raises(LaunchError, match="E0912"):
        optimizer.step()
    optimizer.param_groups[0]["lr"] = 1e-3
    p.grad.shape = (4, 16)
    p.grad.strides = (16, 1)
    optimizer.step()
    assert len(calls) == 2
    p.grad.shape, p.grad.strides, p.grad.negated = (8, 8), (8, 1), True
    optimizer.step()
    assert len(calls) == 3


def test_a_later_step_calls_few_functions_for_a_parameter(torch: Any) -> None:
    """Python's functions, without those of the stubs."""
    optimizer, parameters = _optimizer(torch, 10)
    for _ in range(2):
        optimizer.step()
    called: list[str] = []
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_filename) if event == "call" else None)
    try:
        optimizer.step()
    finally:
        sys.setprofile(None)
    own = [name for name in called if "/tilec/" in name]
    assert len(torch.driver.launches) == 30
    assert len(own) <= 4 * len(parameters) + 24
