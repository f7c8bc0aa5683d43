"""Stub stages for the compilers: quick, deterministic, and able to fail in every way a real one can.

Directives in the kernel file control a stage: a line `#! refuse`, `#! abort`, `#! abort sm_90a`, `#! sleep 0.5`, `#! wait` (for
a file `go` in the project), `#! full`, `#! raise`, `#! spin`, `#! hang`, `#! eat`, `#! much`, `#! killed`, `#! aligned` or
`#! aligned sm_90a`. Comments (`# ...`) are dropped by the first stage, as the front end drops them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bundle import samples
from tilec import pipeline, progress
from tilec.artifact.records import json_bytes, parameter_specs, to_json
from tilec.diagnostics.diagnostic import CompileError, Diagnostic, Label, Span
from tilec.ir.aligned import ALIGNED
from tilec.ir.core import UnsafeBlock
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.project.build import worker
from tilec.target.schedule import Role, Schedule, merged

TIR = """\
kernel @{name}(%x: in tensor<f32, [N], align 16>, %out: out tensor<f32, [N], align 16>) {{
  constants {{}}
  dims [N]
  strides []
  grid [1]
}}
"""
PTX = """
.target {target}
.visible .entry {entry}(
\t.param .u64 .ptr .global .align 1 x,
\t.param .u64 .ptr .global .align 1 out,
\t.param .u32 n
)
.reqntid 128
{{
// griddepcontrol.wait
{text}
}}
"""


def _text(work: pipeline.Work) -> str:
    return (Path(work.request.root) / work.request.path).read_text()


def _tir(work: pipeline.Work) -> dict[str, bytes]:
    text = _text(work)
    if "#! refuse" in text:
        span = Span(work.request.path, 1, 0, 1, 6)
        raise CompileError(Diagnostic("E0301", "load may read past the end", Label(span), hint="pass `pad=0`"))
    if "#! full" in text:
        raise CompileError(Diagnostic("E0701", "the cache cannot be written: no space left on device"))
    if "#! spin" in text:
        while True:
            progress.note("bounds of `x`, n // 3")
    if "#! hang" in text:
        progress.note("nothing at all")
        time.sleep(1000)
    if "#! eat" in text:
        progress.note("sets without end")
        buffers: list[bytes] = []
        while True:
            buffers.append(bytes(range(256)) * 4096)
            time.sleep(0.001)
    if "#! much" in text:
        bytes(1 << 40)
    if "#! raise" in text:
        raise ValueError("a bug")
    body = [line for line in text.split("\n") if line.strip() and not line.startswith("# ")]
    tir = TIR.format(name=work.request.kernel)  # its body becomes an `unsafe` reason, as it has no operations
    function = parse_function(tir)
    function.constants, function.unsafe = work.request.constants, (UnsafeBlock("\n".join(body)),)
    tir, (tensors, scalars) = print_function(function), parameter_specs(function)
    specs = {"tensors": to_json(tensors), "scalars": to_json(scalars), "grid": to_json(function.grid)}
    interface = specs | {"constants": work.request.constants}
    spans = {"lines": {"1": [work.request.path, text.count("\n"), 0, 1, 0]}}  # changes with every comment
    texts = {"tir": tir, "claims": tir, "interface": json.dumps(interface), "spans": json.dumps(spans)}
    return {name: text.encode() for name, text in texts.items()}


def _proofs(work: pipeline.Work) -> dict[str, bytes]:
    lines = len(_text(work).split("\n"))
    obligation: dict[str, Any] = {
        "property": "bounds",
        "subject": "x",
        "location": f"k.py:{lines}:1",
        "rung": "set",
        "facts": [],
        "sets": [],
    }
    proofs: dict[str, Any] = {"obligations": [obligation], **_contract(work.products["tir"].decode()), "unsafe": []}
    return {"proofs": json_bytes(proofs), "positive_divisions": b"[]"}


def _contract(tir: str) -> dict[str, Any]:
    from tilec.passes.prover.aliasing import launch_checks, no_alias_pairs  # imported on use: other stages need no prover

    function = parse_function(tir)
    checks, apart = to_json(launch_checks(function)), to_json(no_alias_pairs(function))
    return {"launch_checks": checks, "value_checks": [], "no_alias": apart}


def _schedule(work: pipeline.Work) -> dict[str, bytes]:
    assert work.target is not None
    wanted = merged(work.request.schedule, work.target)
    schedule = Schedule((Role("all", wanted.warps or 4),), blocks=wanted.blocks)
    return {"schedule": json_bytes(schedule.to_json())}


def _aligned(work: pipeline.Work) -> str:
    """The precondition of the aligned version, which a line `#! aligned` or `#! aligned sm_90a` asks for."""
    wanted = re.search(r"#! aligned(?: (\w+))?$", _text(work), re.MULTILINE)
    if wanted is None or ALIGNED in work.request.constants or wanted[1] not in (None, str(work.target)):
        return ""
    return "N % 8 == 0"


def _mlir(work: pipeline.Work) -> dict[str, bytes]:
    assert work.target is not None
    launch = {
        "entry": work.request.kernel,
        "abi": [{"kind": kind, "name": name} for kind, name in (("pointer", "x"), ("pointer", "out"), ("dim", "N"))],
        "tensor_maps": list[object](),
        "alignments": {"x": 16, "out": 16},
        "block": 128,
        "dynamic_shared_bytes": 64,
        "dependent_launch": True,
        "notes": list[object](),
        "aligned": _aligned(work),
    }
    (body,) = (block.reason for block in parse_function(work.products["tir"].decode()).unsafe)
    text = f"{body}\n{json.dumps(work.request.constants, sort_keys=True)}{work.target}"
    return {"mlir": text.encode(), "launch": json.dumps(launch).encode()}


def _ptx(work: pipeline.Work) -> dict[str, bytes]:
    text = work.products["mlir"].decode()
    assert work.target is not None
    for line in text.split("\n"):
        fields = line.split()
        if line.startswith("#! abort") and (len(fields) == 2 or fields[2].startswith(work.target.name)):
            os.abort()
        if line.startswith("#! killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        if line.startswith("#! sleep"):
            Path(work.request.root, f"sleeping-{os.getpid()}").touch()
            time.sleep(float(fields[2]))
        if line.startswith("#! wait"):
            Path(work.request.root, f"sleeping-{os.getpid()}").touch()
            while not Path(work.request.root, "go").exists():
                time.sleep(0.01)
    return {"ptx": PTX.format(target=work.target, entry=work.request.kernel, text=text).encode()}


def _cubin(work: pipeline.Work) -> dict[str, bytes]:
    assert work.target is not None
    names = ("spill_bytes", "stack_bytes", "static_shared_bytes", "dynamic_shared_bytes")
    resources = {"registers": 40, **dict.fromkeys(names, 0)}
    salt = int.from_bytes(hashlib.sha256(work.products["ptx"]).digest()[:4], "little")
    cubin = samples.cubin(work.request.kernel, salt, int(work.target.name[3:-1]))
    return {"cubin": cubin, "resources": json.dumps(resources | {"one_by_one": False}).encode()}


_RUNS = {"tir": _tir, "proofs": _proofs, "schedule": _schedule, "mlir": _mlir, "ptx": _ptx, "cubin": _cubin}
STAGES = tuple(dataclasses.replace(stage, run=_RUNS[stage.name]) for stage in pipeline.STAGES)


def run(task: worker.Task, emit: Callable[[object], None]) -> None:
    """A scheduler's runner with the stages above."""
    worker.run_stages(task, emit, STAGES)
