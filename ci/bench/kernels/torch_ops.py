"""`tilec.op` in PyTorch on a GPU: a model of three ops eager, compiled and captured, and the host cost of a call.

    export PYTHONPATH=.
    python -P ci/bench/torch_ops.py --build FOLDER              makes the artifacts; needs the compiler, no GPU
    export TILEC_PREBUILT=FOLDER/artifacts/build
    python -P ci/bench/torch_ops.py OUT                         checks and times; needs a GPU and torch, no compiler

Writes OUT/torch_ops.json and torch_ops.md. Times are of the host alone: launches of tiny tensors, in groups that fit the GPU's
queue, the median of the faster half of the groups; a bare launch is `Plan.launch` of the same kernel, with all checks and
allocations done before.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tilec
from kernels_src.add import add as add_kernel
from kernels_src.add_rms_norm import add_rms_norm as add_rms_norm_kernel
from kernels_src.rms_norm import rms_norm as rms_norm_kernel
from kernels_src.silu_mul import silu_mul as silu_mul_kernel
from tilec.runtime import LaunchError
from tilec.runtime.prepared import Prepared

ROOT = Path(__file__).resolve().parents[2]
BUILD = """[build]
kernels = "kernels"
steps = "kernels"
arch = ["sm_90"]
[[model]]
name = "layer"
family = "layer"
config = { hidden_size = 1024 }
[[kernel]]
name = "add"
constants = { E = "bf16", BLOCK = 2048 }
schedule = { warps = 8 }
[[kernel]]
name = "silu_mul"
constants = { E = "bf16", BLOCK = 2048 }
schedule = { warps = 8, blocks = 6 }
[[kernel]]
name = "rms_norm"
constants = { E = "bf16", H = 1024 }
schedule = { warps = 4 }
[[kernel]]
name = "add_rms_norm"
constants = { E = "bf16", H = 1024 }
schedule = { warps = 4 }
"""
STEP = """def decode():
    norm = rms_norm(E="bf16", H=hidden_size)
    residual_norm = add_rms_norm(E="bf16", H=hidden_size)


def prefill():
    activation = silu_mul(E="bf16", BLOCK=2048)
    residual = add(E="bf16", BLOCK=2048)
"""
HIDDEN, INNER, EPS = 1024, 2816, 1e-6
GROUP, GROUPS = 300, 60


def build(folder: Path) -> int:
    """Build artifacts below FOLDER/artifacts/build, and a bundle of them in FOLDER/artifacts/bundles."""
    from tilec.cli import commands

    (folder / "kernels").mkdir(parents=True, exist_ok=True)
    for name in ("add", "silu_mul", "rms_norm", "add_rms_norm", "dims"):
        (folder / "kernels" / f"{name}.py").write_bytes((ROOT / "kernels_src" / f"{name}.py").read_bytes())
    (folder / "kernels" / "layer.step").write_text(STEP)
    (folder / "build.toml").write_text(BUILD)
    return commands.run(["build", "--project", str(folder)]) or commands.run(["bundle", "pack", "--project", str(folder)])


class Ops:
    """The ops, and the model made of them."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.add = tilec.op(add_kernel, constants={"BLOCK": 2048}, name="bench::add")
        self.silu_mul = tilec.op(silu_mul_kernel, constants={"BLOCK": 2048}, name="bench::silu_mul")
        self.rms_norm = tilec.op(rms_norm_kernel, name="bench::rms_norm")
        self.add_rms_norm = tilec.op(add_rms_norm_kernel, name="bench::add_rms_norm")

    def model(self) -> Any:
        """A gated layer of a transformer: norm, two projections, activation, projection, residual."""
        ops, torch = self, self.torch

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


def distance(torch: Any, found: Any, wanted: Any) -> float:
    """The largest difference, in units of the root mean square of the expected values."""
    wide = wanted.double()
    return float((found.double() - wide).abs().max() / wide.pow(2).mean().sqrt())


def check_eager(torch: Any, ops: Ops) -> str:
    model = ops.model()
    with torch.no_grad():
        x = torch.randn(37, HIDDEN, device="cuda", dtype=torch.bfloat16)
        error = distance(torch, model(x), model.reference(x))
    assert error < 0.05, error
    return f"{error:.4f} of the root mean square"


def check_compiled(torch: Any, ops: Ops, mode: str, dynamic: bool | None) -> str:
    model = ops.model()
    compiled = torch.compile(model, mode=mode, fullgraph=True, dynamic=dynamic)
    worst, same = 0.0, True
    with torch.no_grad():
        for rows in (37, 37, 37, 64) if dynamic else (37, 37, 37):
            x = torch.randn(rows, HIDDEN, device="cuda", dtype=torch.bfloat16)
            wanted, found = model(x), compiled(x).clone()
            worst = max(worst, distance(torch, found, wanted))
            same = same and bool(torch.equal(found, wanted))
    assert worst < 0.05, worst
    return "equal to eager, bit for bit" if same else f"{worst:.4f} of the root mean square from eager"


def check_mutation(torch: Any, ops: Ops) -> str:
    def step(x: Any, residual: Any, weight: Any) -> Any:
        out = ops.add_rms_norm(x, residual, weight, eps=EPS)
        return out, residual + 1

    weight = torch.rand(HIDDEN, device="cuda", dtype=torch.bfloat16)
    compiled = torch.compile(step, fullgraph=True)
    for _ in range(3):
        x, residual = (torch.randn(5, HIDDEN, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        own, theirs = residual.clone(), residual.clone()
        wanted, found = step(x, own, weight), compiled(x, theirs, weight)
        version = own._version
        assert torch.equal(own, theirs) and torch.equal(own, x + residual)
        assert all(torch.equal(one, other) for one, other in zip(wanted, found, strict=True))
        assert version > 0
    return "in place, eager and compiled"


def check_capture(torch: Any, ops: Ops) -> str:
    x, y = (torch.randn(5000, device="cuda", dtype=torch.bfloat16) for _ in range(2))
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


def check_torch_agrees(torch: Any, ops: Ops) -> str:
    """`torch.library.opcheck`: schema, fake, autograd registration, and AOT dispatch with static and dynamic shapes."""
    x, y = (torch.randn(5000, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    rows, residual = (torch.randn(5, HIDDEN, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    weight = torch.rand(HIDDEN, device="cuda", dtype=torch.bfloat16)
    torch.library.opcheck(torch.ops.bench.add.default, (x, y))
    torch.library.opcheck(torch.ops.bench.rms_norm.default, (rows, weight, EPS))
    torch.library.opcheck(torch.ops.bench.add_rms_norm.default, (rows, residual, weight, EPS))
    return "add, rms_norm, add_rms_norm"


def check_gradient(torch: Any, ops: Ops) -> str:
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


def check_elsewhere(torch: Any, ops: Ops) -> str:
    """Other streams, a thread without a context, modes, host tensors."""
    x, y = (torch.randn(5000, device="cuda", dtype=torch.bfloat16) for _ in range(2))
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


def check_dlpack(torch: Any, ops: Ops) -> str:
    """Exchange between a `DeviceArray` and PyTorch, both ways."""
    import numpy as np

    from tilec.runtime import Device, view_tensor

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


CHECKS: dict[str, Callable[[Any, Ops], str]] = {
    "eager against float32": check_eager,
    "compiled": lambda torch, ops: check_compiled(torch, ops, "default", False),
    "compiled, dynamic shapes": lambda torch, ops: check_compiled(torch, ops, "default", True),
    "compiled with CUDA graphs (reduce-overhead)": lambda torch, ops: check_compiled(torch, ops, "reduce-overhead", False),
    "an argument that is written": check_mutation,
    "captured in a CUDA graph": check_capture,
    "torch.library.opcheck": check_torch_agrees,
    "gradients": check_gradient,
    "streams, threads and modes": check_elsewhere,
    "DLPack": check_dlpack,
}


def microseconds(torch: Any, call: Callable[[], Any]) -> float:
    """Host microseconds of one call."""
    times: list[float] = []
    for _ in range(GROUPS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(GROUP):
            call()
        times.append((time.perf_counter() - start) / GROUP * 1e6)
    times.sort()
    return statistics.median(times[: GROUPS // 2])


def overheads(torch: Any, ops: Ops) -> dict[str, float]:
    """Host microseconds by what is called."""
    x, y = (torch.randn(256, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(x)
    rows, residual = (torch.randn(1, HIDDEN, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    weight = torch.rand(HIDDEN, device="cuda", dtype=torch.bfloat16)
    into = tilec.op(add_kernel, constants={"BLOCK": 2048}, mutates=["out"], name="bench::add_into")
    with torch.no_grad():
        for op, arguments in (
            (ops.add, (x, y)), (into, (x, y, out)), (ops.rms_norm, (rows, weight, EPS)),
            (ops.add_rms_norm, (rows, residual, weight, EPS)),
        ):  # fmt: skip
            op(*arguments)
    kernel, norm, residual_norm = (op.loaded[0] for op in (ops.add, ops.rms_norm, ops.add_rms_norm))
    plan = kernel.plan({"x": x, "y": y, "out": out})
    norm_plan = norm.plan({"x": rows, "weight": weight, "out": torch.empty_like(rows), "eps": EPS})
    given = {"x": rows, "residual": residual, "weight": weight, "out": torch.empty_like(rows), "eps": EPS}
    residual_plan = residual_norm.plan(given)
    stream = torch.cuda.current_stream().cuda_stream
    packet = torch.ops.bench.add.default
    empty = importlib.import_module("tilec.ops.torch_op").helpers()["empty"]
    prepared, pointers = Prepared(kernel, plan.checked, {"out"}), (x.data_ptr(), y.data_ptr(), out.data_ptr())
    calls: dict[str, Callable[[], Any]] = {
        "bare launch of add": lambda: plan.launch(stream),
        "tilec.op add, into a given tensor": lambda: into(x, y, out),
        "tilec.op add": lambda: ops.add(x, y),
        "tilec.op add by keywords": lambda: ops.add(x=x, y=y),
        "bare launch of rms_norm": lambda: norm_plan.launch(stream),
        "tilec.op rms_norm": lambda: ops.rms_norm(rows, weight, EPS),
        "bare launch of add_rms_norm": lambda: residual_plan.launch(stream),
        "tilec.op add_rms_norm": lambda: ops.add_rms_norm(rows, residual, weight, EPS),
        "tilec.op add through the dispatcher": lambda: packet(x, y),
        "Kernel.plan and launch of add": lambda: kernel({"x": x, "y": y, "out": out}, stream=stream),
        "allocation of a result, as an op does": lambda: empty((256,), (1,), torch.bfloat16),
        "torch.empty_like": lambda: torch.empty_like(x),
        "launch of what is prepared, as an op does": lambda: prepared.launch(stream, pointers),
        "torch.add": lambda: torch.add(x, y),
        "torch.add, into a given tensor": lambda: torch.add(x, y, out=out),
    }
    with torch.no_grad():
        for call in calls.values():
            microseconds(torch, call)
        return {name: round(microseconds(torch, call), 3) for name, call in calls.items()}


def measured(torch: Any) -> dict[str, Any]:
    """The results: a line for each check, the failures, and the times."""
    ops = Ops(torch)
    checks: dict[str, str] = {}
    failed: dict[str, str] = {}
    start = time.perf_counter()
    for name, check in CHECKS.items():
        try:
            checks[name] = check(torch, ops)
        except Exception:
            failed[name] = traceback.format_exc()
        print(f"{time.perf_counter() - start:5.1f} s  {name}: {checks.get(name, 'FAILED')}", file=sys.stderr, flush=True)
    try:
        times = overheads(torch, ops)
    except Exception:
        times, failed["times"] = {}, traceback.format_exc()
    versions = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    return versions | {"checks": checks, "failed": failed, "microseconds": times}


def table(found: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = ["# `tilec.op` in PyTorch", "", f"{found['gpu']}, PyTorch {found['torch']}, by `ci/bench/torch_ops.py`.", ""]
    lines += ["| check | |", "|---|---|"]
    lines += [f"| {name} | {text} |" for name, text in found["checks"].items()]
    lines += [f"| {name} | FAILED |" for name in found["failed"]]
    lines += ["", "| the host's time of a call | microseconds |", "|---|--:|"]
    lines += [f"| {name} | {value:.2f} |" for name, value in found["microseconds"].items()]
    times = found["microseconds"]
    if times:
        for kernel in ("add", "rms_norm", "add_rms_norm"):
            beyond = times[f"tilec.op {kernel}"] - times[f"bare launch of {kernel}"]
            lines.append(f"| `tilec.op` of `{kernel}` beyond a bare launch, allocation of the result included | {beyond:.2f} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Build, or check and time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder to write results to, or to build in")
    parser.add_argument("--build", action="store_true", help="make the artifacts")
    options = parser.parse_args(arguments)
    if options.build:
        return build(options.folder)
    found = measured(importlib.import_module("torch"))
    options.folder.mkdir(parents=True, exist_ok=True)
    (options.folder / "torch_ops.json").write_text(json.dumps(found, indent=1) + "\n")
    text = table(found)
    (options.folder / "torch_ops.md").write_text(text)
    print(text)
    for name, trace in found["failed"].items():
        print(f"{name}:\n{trace}")
    return int(bool(found["failed"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
