"""The operator that graphs of `torch.compile` contain, and how many functions of Python a call takes: stubs of PyTorch and the
driver."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tilec
from tests.ops import prebuilt
from tests.ops.copying_driver import CopyingDriver
from tests.ops.fake_torch import FakeTorch, Tensor
from tilec.ops.graph_op import plain_apply
from tilec.runtime import LaunchError

EPS = 1e-6


def make_op(kernels: Path, kernel: str, **options: Any) -> Any:
    return tilec.op(prebuilt.KERNELS / f"{kernel}.py", prebuilt=kernels, **options)


def rows(torch: FakeTorch, count: int, hidden: int = 1024) -> tuple[Tensor, Tensor]:
    return torch.empty(count, hidden, dtype="bfloat16"), torch.empty(hidden, dtype="bfloat16")


def test_graphs_contain_an_operator_without_a_gradient(torch: FakeTorch, driver: CopyingDriver, kernels: Path) -> None:
    """So that a compiled function does not run the Python function of autograd at every call."""
    rms_norm = make_op(kernels, "rms_norm", name="mine::norm")
    rms_norm.register_autograd(
        lambda ctx, grad: ("given", grad), setup_context=lambda ctx, *given: ctx.__dict__.update(g=given)
    )
    outer, inner = torch.operators["mine::norm"], torch.operators["mine::norm_in_graphs"]
    assert outer.schema.removeprefix("norm") == inner.schema.removeprefix("norm_in_graphs")
    assert ({*outer.kernels}, {*inner.kernels}, inner.fake) == ({"CUDA", "Autograd"}, {"CUDA"}, outer.fake)
    assert outer.autograd is inner.autograd is None
    x, weight = rows(torch, 3)
    for number, recorded in ((1, False), (2, True)):
        weight.requires_grad = torch.grad = recorded
        out = outer(x, weight, EPS)
        assert (inner.calls, len(driver.launches), len(torch.contexts)) == (number, number, int(recorded))
        assert not torch.below
    assert torch.contexts[0].g == ((x, weight, EPS), out)
    into = make_op(kernels, "rms_norm", mutates=["out"], name="mine::into")
    assert {*torch.operators["mine::into"].kernels} == {"CUDA"} and "mine::into_in_graphs" not in torch.operators
    assert into._overload is torch.operators["mine::into"]  # graphs contain it, as it has no gradient to record


def test_the_contract_is_enforced_in_graphs(torch: FakeTorch, driver: CopyingDriver, kernels: Path) -> None:
    """Also after calls of the same shapes: what depends on addresses and on other tensors."""
    make_op(kernels, "rms_norm", name="mine::norm")
    inner = torch.operators["mine::norm_in_graphs"]
    x, weight = rows(torch, 3)
    for _ in range(3):
        inner(x, weight, EPS)
    changes: dict[str, Callable[[Tensor], None]] = {
        "E0907": lambda x: setattr(x, "strides", (2, 1)), "E0904": lambda x: setattr(x, "dtype", "complex64"),
        "E0905": lambda x: setattr(x, "shape", (3, 4, 1024)), "E0908": lambda x: setattr(x, "data_ptr", lambda: 4098),
        "E0914": lambda x: setattr(x, "data_ptr", lambda: 0),
    }  # fmt: skip
    for code, change in changes.items():
        other, _ = rows(torch, 3)
        change(other)
        with pytest.raises(LaunchError, match=code):
            inner(other, weight, EPS)
    with pytest.raises(LaunchError, match="E0912"):
        inner(x, weight, 1e39)
    assert len(driver.launches) == 3


def _functions(call: Callable[[], Any]) -> list[str]:
    """The functions of tilec that a call takes, without those of the stubs, whose tensors are arrays of the device."""
    parts = (
        "<tilec.op",
        "/tilec/ops/",
        "/runtime/prepared.py",
        "/runtime/kernel.py",
        "/runtime/contract.py",
        "/runtime/scalars.py",
    )
    called: list[str] = []

    def record(frame: Any, event: str, _: Any) -> None:
        if event == "call" and any(part in frame.f_code.co_filename for part in parts):
            called.append(frame.f_code.co_name)

    sys.setprofile(record)
    try:
        call()
    finally:
        sys.setprofile(None)
    return called


def test_a_call_takes_two_functions(torch: FakeTorch, driver: CopyingDriver, kernels: Path) -> None:
    """The call and the launch: nothing else repeats, with and without tensors that require a gradient."""
    guards = torch._C._dynamo.guards
    guards._empty_strided_cuda = lambda shape, strides, dtype: torch.empty(*shape, dtype=dtype)
    rms_norm = make_op(kernels, "rms_norm")
    x, weight = rows(torch, 3)
    for requires_grad in (False, True):
        weight.requires_grad = requires_grad
        for _ in range(3):
            rms_norm(x, weight, EPS)
        before = torch.alike
        assert _functions(lambda: rms_norm(x, weight, EPS)) == ["rms_norm", "launch"]
        assert torch.alike == before + 1
    for number in range(20):  # one after the other: no check is learned at every call
        weight.requires_grad = number % 2 == 0
        rms_norm(x, weight, EPS)
    assert "_learn" not in _functions(lambda: rms_norm(x, weight, EPS))
    inner = torch.operators["tilec::rms_norm_in_graphs"]
    assert _functions(lambda: inner(x, weight, EPS)) == ["rms_norm", "launch"]


def test_apply_of_a_function_of_autograd_is_that_of_its_base(torch: FakeTorch) -> None:
    class Base:
        @classmethod
        def apply(cls, *args: Any) -> Any:
            return cls, args

    class Function(Base):
        apply = None  # the function that looks for transforms

    fake: Any = SimpleNamespace(_C=SimpleNamespace(_FunctionBase=Base))
    assert plain_apply(fake, Function)(1, 2) == (Function, (1, 2))
    assert plain_apply(SimpleNamespace(_C=SimpleNamespace()), Function) is None
