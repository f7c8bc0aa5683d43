"""A model of three ops on torch tensors, eager, compiled and captured: the checks of `torch_ops`.

Each check returns what it found as a line, and raises if something is wrong.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

import tilec
from ci.evidence import ROOT
from kernels_src.add import add as add_kernel
from kernels_src.add_rms_norm import add_rms_norm as add_rms_norm_kernel
from kernels_src.rms_norm import rms_norm as rms_norm_kernel
from tilec.runtime import Device, LaunchError, view_tensor

torch: Any = importlib.import_module("torch")

HIDDEN, INNER, EPS = 1024, 2816, 1e-6


class Ops:
    """The ops, and the model made of them."""

    def __init__(self) -> None:
        self.add = tilec.op(add_kernel, constants={"BLOCK": 2048}, name="bench::add")
        self.silu_mul = tilec.op(ROOT / "examples/kernels/silu_mul.py", constants={"BLOCK": 2048}, name="bench::silu_mul")
        self.rms_norm = tilec.op(rms_norm_kernel, name="bench::rms_norm")
        self.add_rms_norm = tilec.op(add_rms_norm_kernel, name="bench::add_rms_norm")

    def model(self) -> Any:
        """A gated layer of a transformer: norm, two projections, activation, projection, residual."""
        ops = self

        class Layer(torch.nn.Module):
            def __init__(self: Any) -> None:
                torch.nn.Module.__init__(self)
                self.weight = torch.nn.Parameter(torch.rand(HIDDEN) + 0.5)
                self.gate = torch.nn.Linear(HIDDEN, INNER, bias=False)
                self.up = torch.nn.Linear(HIDDEN, INNER, bias=False)
                self.down = torch.nn.Linear(INNER, HIDDEN, bias=False)

            def forward(self, x: Any) -> Any:
                normed = ops.rms_norm(x, self.weight, eps=EPS)
                inner = ops.silu_mul(self.gate(normed).view(-1), self.up(normed).view(-1)).view(-1, INNER)
                return ops.add(x.view(-1), self.down(inner).view(-1)).view(x.shape)

            def reference(self, x: Any) -> Any:
                """The same in float32 with PyTorch's own operators."""
                wide = x.float()
                normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS) * self.weight.float()
                gate, up = normed @ self.gate.weight.float().T, normed @ self.up.weight.float().T
                return wide + (torch.nn.functional.silu(gate) * up) @ self.down.weight.float().T

        return Layer().to("cuda", torch.bfloat16)


def normal(*shape: int) -> Any:
    """Normally distributed bf16."""
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def distance(found: Any, wanted: Any) -> float:
    """The largest difference, in units of the root mean square of the expected values."""
    wide = wanted.double()
    return float((found.double() - wide).abs().max() / wide.pow(2).mean().sqrt())


def check_eager(ops: Ops) -> str:
    model = ops.model()
    with torch.no_grad():
        x = normal(37, HIDDEN)
        error = distance(model(x), model.reference(x))
    assert error < 0.05, error
    return f"{error:.4f} of the root mean square"


def check_compiled(ops: Ops, mode: str, dynamic: bool | None) -> str:
    model = ops.model()
    compiled = torch.compile(model, mode=mode, fullgraph=True, dynamic=dynamic)
    worst, same = 0.0, True
    with torch.no_grad():
        for rows in (37, 37, 37, 64) if dynamic else (37, 37, 37):
            x = normal(rows, HIDDEN)
            wanted, found = model(x), compiled(x).clone()
            worst = max(worst, distance(found, wanted))
            same = same and bool(torch.equal(found, wanted))
    assert worst < 0.05, worst
    return "equal to eager, bit for bit" if same else f"{worst:.4f} of the root mean square from eager"


def check_mutation(ops: Ops) -> str:
    def step(x: Any, residual: Any, weight: Any) -> Any:
        out = ops.add_rms_norm(x, residual, weight, eps=EPS)
        return out, residual + 1

    weight = torch.rand(HIDDEN, device="cuda", dtype=torch.bfloat16)
    compiled = torch.compile(step, fullgraph=True)
    for _ in range(3):
        x, residual = normal(5, HIDDEN), normal(5, HIDDEN)
        own, theirs = residual.clone(), residual.clone()
        wanted, found = step(x, own, weight), compiled(x, theirs, weight)
        version = own._version
        assert torch.equal(own, theirs) and torch.equal(own, x + residual)
        assert all(torch.equal(one, other) for one, other in zip(wanted, found, strict=True))
        assert version > 0
    return "in place, eager and compiled"


def check_capture(ops: Ops) -> str:
    x, y = normal(5000), normal(5000)
    ops.add(x, y)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = ops.add(x, ops.add(x, y))
    for _ in range(3):
        x.copy_(torch.randn_like(x))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, x + (x + y))
    return "two launches, three replays on new data"


def check_torch_agrees(ops: Ops) -> str:
    """`torch.library.opcheck`: schema, fake, autograd registration, and AOT dispatch with static and dynamic shapes."""
    x, y = normal(5000), normal(5000)
    rows, residual = normal(5, HIDDEN), normal(5, HIDDEN)
    weight = torch.rand(HIDDEN, device="cuda", dtype=torch.bfloat16)
    torch.library.opcheck(torch.ops.bench.add.default, (x, y))
    torch.library.opcheck(torch.ops.bench.rms_norm.default, (rows, weight, EPS))
    torch.library.opcheck(torch.ops.bench.add_rms_norm.default, (rows, residual, weight, EPS))
    return "add, rms_norm, add_rms_norm"


def check_gradient(ops: Ops) -> str:
    op = tilec.op(add_kernel, constants={"BLOCK": 2048}, name="bench::add_with_gradient")
    x, y = (torch.randn(5000, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    try:
        op(x, y).sum().backward()
    except Exception as error:
        assert "E0919" in str(error), error
    else:
        raise AssertionError("a gradient that nobody wrote")

    def backward(ctx: Any, grad: Any) -> Any:
        return grad, 2 * grad

    op.register_autograd(backward)
    op(x, y).sum().backward()
    assert torch.equal(y.grad, 2 * torch.ones_like(y)) and torch.equal(x.grad, torch.ones_like(x))
    return "refused without one, and one that was given"


def check_elsewhere(ops: Ops) -> str:
    """Other streams, a thread without a context, modes, host tensors."""
    x, y = normal(5000), normal(5000)
    wanted = x + y
    side_stream = torch.cuda.Stream()
    side_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side_stream):
        found = ops.add(x, y)
    side_stream.synchronize()
    assert torch.equal(found, wanted)
    results: list[Any] = []

    def use() -> None:
        try:
            results.append(ops.add(x, y))
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert torch.is_tensor(results[0]) and torch.equal(results[0], wanted), results

    with importlib.import_module("torch.utils.flop_counter").FlopCounterMode(display=False):
        assert torch.equal(ops.add(x, y), wanted)
    try:
        ops.add(x.cpu(), y.cpu())
    except LaunchError as error:
        assert error.code == "E0914"
    else:
        raise AssertionError("host memory was taken")
    with torch.inference_mode():
        assert torch.equal(ops.add(x, y), wanted)
    return "streams, threads, modes"


def check_dlpack(ops: Ops) -> str:
    """Exchange between a `DeviceArray` and PyTorch, both ways."""
    device = Device()
    x = torch.randn(4, 100, device="cuda")
    assert view_tensor(x).pointer == x.data_ptr()
    array = device.from_numpy(x.cpu().numpy())
    other = torch.from_dlpack(array)
    assert other.data_ptr() == array.pointer and torch.equal(other, x)
    half = torch.from_dlpack(device.empty((3,), "bf16"))
    assert half.dtype == torch.bfloat16
    del array
    assert torch.equal(other, x)
    ones = [device.from_numpy(np.full(300, 0x3F80, np.uint16), "bf16") for _ in range(2)]
    assert torch.equal(torch.from_dlpack(ops.add(*ones)), torch.full((300,), 2.0, device="cuda", dtype=torch.bfloat16))
    return "f32 and bf16, arguments of an op"


CHECKS: dict[str, Callable[[Ops], str]] = {
    "eager against float32": check_eager,
    "compiled": lambda ops: check_compiled(ops, "default", False),
    "compiled, dynamic shapes": lambda ops: check_compiled(ops, "default", True),
    "compiled with CUDA graphs (reduce-overhead)": lambda ops: check_compiled(ops, "reduce-overhead", False),
    "an argument that is written": check_mutation,
    "captured in a CUDA graph": check_capture,
    "torch.library.opcheck": check_torch_agrees,
    "gradients": check_gradient,
    "streams, threads and modes": check_elsewhere,
    "DLPack": check_dlpack,
}
