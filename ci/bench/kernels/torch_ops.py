"""`tilec.op` in PyTorch on a GPU: a model of three ops eager, compiled and captured, and the host cost of a call.

    python ci/bench/kernels.py torch_ops --build FOLDER     makes the artifacts; needs the compiler, no GPU
    export TILEC_PREBUILT=FOLDER/artifacts/build
    python ci/bench/kernels.py torch_ops                    checks and times; needs a GPU and torch, no compiler

Times are of the host alone: launches of tiny tensors, in groups that fit the GPU's queue, the median of the faster half of the
groups; a bare launch is `Plan.launch` of the same kernel, with all checks and allocations done before. Status 1 if a check
fails.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import tilec
from ci.bench.front import Outcome
from ci.bench.kernels.projects import Part, write
from ci.bench.markdown import grid, line, page
from tilec.runtime.prepared import Prepared

if TYPE_CHECKING:
    from ci.bench.kernels.torch_ops_checks import Ops

MODEL: Final = """steps = "kernels"
[[model]]
name = "layer"
family = "layer"
config = { hidden_size = 1024 }
"""
PARTS: Final = (
    Part("add", 'E = "bf16", BLOCK = 2048', "schedule = { warps = 8 }"),
    Part("silu_mul", 'E = "bf16", BLOCK = 2048', "schedule = { warps = 8, blocks = 6 }"),
    Part("rms_norm", 'E = "bf16", H = 1024', "schedule = { warps = 4 }"),
    Part("add_rms_norm", 'E = "bf16", H = 1024', "schedule = { warps = 4 }"),
)
STEP: Final = """def decode():
    norm = rms_norm(E="bf16", H=hidden_size)
    residual_norm = add_rms_norm(E="bf16", H=hidden_size)


def prefill():
    activation = silu_mul(E="bf16", BLOCK=2048)
    residual = add(E="bf16", BLOCK=2048)
"""
GROUP, GROUPS = 300, 60


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.add_argument("--build", type=Path, metavar="FOLDER", help="only make the artifacts, there")


def measure(options: argparse.Namespace) -> Outcome | int:
    """Build, or check and time."""
    if options.build is not None:
        return build(options.build)
    found = measured()
    for name, trace in found["failed"].items():
        print(f"{name}:\n{trace}")
    return Outcome(found, {f"{options.name}.md": table(found)}, int(bool(found["failed"])))


def build(folder: Path) -> int:
    """Build artifacts below FOLDER/artifacts/build, and a bundle of them in FOLDER/artifacts/bundles."""
    from tilec.cli import commands

    write(PARTS, folder, MODEL)
    (folder / "kernels" / "layer.step").write_text(STEP)
    return commands.run(["build", "--project", str(folder)]) or commands.run(["bundle", "pack", "--project", str(folder)])


def microseconds(call: Callable[[], Any], synchronize: Callable[[], None]) -> float:
    """Host microseconds of one call."""
    times: list[float] = []
    for _ in range(GROUPS):
        synchronize()
        start = time.perf_counter()
        for _ in range(GROUP):
            call()
        times.append((time.perf_counter() - start) / GROUP * 1e6)
    return statistics.median(sorted(times)[: GROUPS // 2])


def overheads(ops: Ops) -> dict[str, float]:
    """Host microseconds by what is called."""
    from ci.bench.kernels.torch_ops_checks import EPS, HIDDEN, add_kernel, normal, torch
    from tilec.ops.torch_op import helpers

    x, y = normal(256), normal(256)
    out = torch.empty_like(x)
    rows, residual = normal(1, HIDDEN), normal(1, HIDDEN)
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
    empty = helpers()["empty"]
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
            microseconds(call, torch.cuda.synchronize)
        return {name: round(microseconds(call, torch.cuda.synchronize), 3) for name, call in calls.items()}


def measured() -> dict[str, Any]:
    """The results: a line for each check, the failures, and the times."""
    from ci.bench.kernels.torch_ops_checks import CHECKS, Ops, torch

    ops, start = Ops(), time.perf_counter()
    checks: dict[str, str] = {}
    failed: dict[str, str] = {}
    for name, check in CHECKS.items():
        try:
            checks[name] = check(ops)
        except Exception:
            failed[name] = traceback.format_exc()
        print(f"{time.perf_counter() - start:5.1f} s  {name}: {checks.get(name, 'FAILED')}", file=sys.stderr, flush=True)
    try:
        times = overheads(ops)
    except Exception:
        times, failed["times"] = {}, traceback.format_exc()
    versions = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    return versions | {"checks": checks, "failed": failed, "microseconds": times}


def table(found: Mapping[str, Any]) -> str:
    """The checks, and the times."""
    times, rows = found["microseconds"], [(name, f"{value:.2f}") for name, value in found["microseconds"].items()]
    for kernel in ("add", "rms_norm", "add_rms_norm") if times else ():
        beyond = times[f"tilec.op {kernel}"] - times[f"bare launch of {kernel}"]
        rows.append((f"`tilec.op` of `{kernel}` beyond a bare launch, allocation of the result included", f"{beyond:.2f}"))
    lines = ["# `tilec.op` in PyTorch", ""]
    lines += [f"{found['gpu']}, PyTorch {found['torch']}, by `ci/bench/kernels.py torch_ops`.", "", "| check | |", "|---|---|"]
    lines += [line(one) for one in (*found["checks"].items(), *((name, "FAILED") for name in found["failed"]))]
    return page([*lines, "", *grid(("the host's time of a call", "microseconds"), rows)])
