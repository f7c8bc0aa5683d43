"""Stages that stand in for the compilers: quick, deterministic, and able to fail in every way a real one can.

What a stage does is written in the kernel file: a line `#! refuse`, `#! abort`, `#! abort sm_90a`, `#! sleep 0.5`,
`#! full` or `#! raise`. Comments (`# ...`) are dropped by the first stage, as the front end drops them.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from tilec import pipeline
from tilec.build import worker
from tilec.diagnostics import CompileError, Diagnostic, Label, Span


def _text(work: pipeline.Work) -> str:
    return (Path(work.request.root) / work.request.path).read_text()


def _tir(work: pipeline.Work) -> dict[str, bytes]:
    text = _text(work)
    if "#! refuse" in text:
        span = Span(work.request.path, 1, 0, 1, 6)
        raise CompileError(Diagnostic("E0301", "load may read past the end", Label(span), hint="pass `pad=0`"))
    if "#! full" in text:
        raise CompileError(Diagnostic("E0701", "the cache cannot be written: no space left on device"))
    if "#! raise" in text:
        raise ValueError("a defect")
    body = [line for line in text.split("\n") if line.strip() and not line.startswith("# ")]
    interface = {"tensors": [], "scalars": [], "grid": [1], "constants": work.request.constants}
    tir = "\n".join(body) + "\n" + json.dumps(work.request.constants, sort_keys=True)
    return {"tir": tir.encode(), "interface": json.dumps(interface).encode()}


def _proofs(work: pipeline.Work) -> dict[str, bytes]:
    lines = len(_text(work).split("\n"))
    one = {"property": "bounds", "subject": "x", "location": f"k.py:{lines}:1", "rung": "set", "facts": [], "sets": []}
    proofs = {"obligations": [one], "launch_checks": [], "value_checks": [], "no_alias": [], "unsafe": []}
    return {"proofs": json.dumps(proofs).encode()}


def _mlir(work: pipeline.Work) -> dict[str, bytes]:
    assert work.target is not None
    launch = {"entry": work.request.kernel, "abi": [], "block": 128, "dynamic_shared_bytes": 64, "dependent_launch": True}
    return {"mlir": work.products["tir"] + work.target.name.encode(), "launch": json.dumps(launch).encode()}


def _ptx(work: pipeline.Work) -> dict[str, bytes]:
    text = work.products["mlir"].decode()
    assert work.target is not None
    for line in text.split("\n"):
        words = line.split()
        if line.startswith("#! abort") and (len(words) == 2 or words[2].startswith(work.target.name)):
            os.abort()
        if line.startswith("#! sleep"):
            Path(work.request.root, f"sleeping-{os.getpid()}").touch()
            time.sleep(float(words[2]))
    return {"ptx": b"ptx " + text.encode()}


def _cubin(work: pipeline.Work) -> dict[str, bytes]:
    names = ("spill_bytes", "stack_bytes", "static_shared_bytes", "dynamic_shared_bytes")
    resources = {"registers": 40, **dict.fromkeys(names, 0)}
    return {"cubin": b"cubin " + work.products["ptx"], "resources": json.dumps(resources).encode()}


_RUNS = {"tir": _tir, "proofs": _proofs, "mlir": _mlir, "ptx": _ptx, "cubin": _cubin}
STAGES = tuple(dataclasses.replace(stage, run=_RUNS[stage.name]) for stage in pipeline.STAGES)


def run(task: worker.Task, emit: Callable[[object], None]) -> None:
    """A scheduler's runner with the stages above."""
    worker.run_stages(task, emit, STAGES)
