"""Starts the engine in new processes and times them to their first token, with a model's real files in the page cache.

    python3 ci/bench/engine.py cold_start artifacts/bundles/qwen3-4b-sm_90a.bundle FOLDER [--model qwen3-4b] [--runs 5]

FOLDER has config, tokenizer and chat template; random weights, sharded like published models, are written next to copies of
them in a temporary folder. Every run is a new process in which no compiler can be imported. Exit status 1 if a process fails
or if two of them write different texts or tokens; 3, without a verdict, if other processes hold the card's memory. Seconds
are figures: other processes on the machine or on the card lengthen them, so a goal can only be shown to be met.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ci.bench.engine.ledger import refuse_shared_card
from ci.bench.engine.weights import BlockWeights, config_of
from ci.bench.front import Outcome
from ci.bench.markdown import grid, page
from ci.evidence import ROOT

GOALS: Final = {"to_first_byte": 0.8, "kernel_load_seconds": 0.150}
"""The most seconds of a run on a machine that does nothing else. Figures, not conditions."""
SHARD_BYTES: Final = 4 << 30
FORBIDDEN: Final = (
    "torch", "torch_mlir", "mlir", "llvmlite", "triton", "islpy", "networkx", "cuda.bindings.nvrtc", "cuda.bindings.nvjitlink",
    "tilec.frontend", "tilec.passes", "tilec.lowering", "tilec.codegen", "tilec.assemble", "tilec.pipeline", "tilec.project",
)  # fmt: skip
"""Modules that compilation needs."""

BLOCKER: Final = f"""
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if any(name == word or name.startswith(word + ".") for word in {FORBIDDEN!r}):
            raise ImportError(f"{{name}} is not for this process")

sys.meta_path.insert(0, Blocker())
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this case."""
    parser.add_argument("bundle", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="qwen3-4b")
    parser.add_argument("--runs", type=int, default=5)


def measure(options: argparse.Namespace) -> Outcome:
    """Write the files, run, compare the runs."""
    with tempfile.TemporaryDirectory() as name:
        model, blocker = Path(name) / "model", Path(name) / "blocker"
        shutil.copytree(options.folder, model)
        blocker.mkdir()
        (blocker / "sitecustomize.py").write_text(BLOCKER)
        size = write_weights(model, options.model)
        runs = [one(model, options.bundle.resolve(), blocker) for _ in range(options.runs + 1)][1:]
    faults = differences(runs)
    title = f"# From process start to the first token: {options.model}, {size / 1e9:.2f} GB of weights"
    seconds = [run.seconds for run in runs if not run.failure]
    record = {"model": options.model, "weight_bytes": size, "runs": seconds, "faults": faults}
    return Outcome(record, {"cold_start.md": page([title, "", *report(runs, faults)])}, int(bool(faults)))


@dataclass(frozen=True, slots=True)
class Run:
    """Two processes: what they wrote, their seconds by name, and the message of one that failed."""

    text: bytes = b""
    ids: tuple[int, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    failure: str = ""


def differences(runs: Sequence[Run]) -> list[str]:
    """What is wrong, whatever else ran on the machine: processes that failed or wrote nothing, and texts that differ."""
    faults = list(dict.fromkeys(run.failure for run in runs if run.failure))
    whole = [run for run in runs if not run.failure]
    if any(not run.text.strip() or not run.ids for run in whole):
        faults.append("a process wrote no token")
    if len({run.text for run in whole}) > 1 or len({run.ids for run in whole}) > 1:
        faults.append("processes wrote different tokens for one prompt")
    return faults


def report(runs: Sequence[Run], faults: Sequence[str]) -> list[str]:
    """The table of seconds, and what was checked."""
    whole = [run.seconds for run in runs if not run.failure]
    rows: list[tuple[object, ...]] = []
    for key in whole[0] if whole else ():
        values = [seconds[key] for seconds in whole]
        shown = [f"{value:.3f}" for value in (min(values), statistics.median(values), max(values))]
        goal = GOALS.get(key)
        rows.append((key, *shown, goal or "", "" if goal is None else "yes" if max(values) <= goal else "not shown"))
    lines = grid(("seconds", "best", "median", "worst", "goal", "met"), rows)
    lines += [
        "",
        "Seconds are figures: what else runs on the machine and on the card lengthens them. Checked is that every process",
    ]
    lines += [f"ends well and that all write the same tokens: {'; '.join(faults) or 'they do'}."]
    return [*lines, "", f"Not importable in these processes: {', '.join(FORBIDDEN)}."]


def write_weights(folder: Path, name: str) -> int:
    """Write shards and their index; returns the total bytes."""
    weights = BlockWeights(config_of(name), "bf16")
    shards: list[dict[str, Any]] = [{}]
    size = 0
    for tensor, values in weights.tensors():
        if sum(array.nbytes for array in shards[-1].values()) + values.nbytes > SHARD_BYTES:
            shards.append({})
        shards[-1][tensor] = values
        size += values.nbytes
    index: dict[str, str] = {}
    for number, tensors in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        header, offset = dict[str, Any](), 0
        for tensor, values in tensors.items():
            ends = offset + values.nbytes
            header[tensor] = {"dtype": "BF16", "shape": list(values.shape), "data_offsets": [offset, ends]}
            offset = ends
            index[tensor] = file
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with (folder / file).open("wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            for values in tensors.values():
                out.write(values.view("u1").data)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return size


def command(model: Path, bundle: Path) -> list[str]:
    """The command line of the engine, without its output options."""
    found = [sys.executable, "-m", "engine", "--model", str(model), "--bundle", str(bundle)]
    return [*found, "--prompt", "Hello", "--raw-prompt"]


def one(model: Path, bundle: Path, blocker: Path) -> Run:
    """One process that streams its text, timed to its first byte, and one that reports its own times. Unfinished if other
    processes hold the memory that the model needs."""
    environment = {**os.environ, "PYTHONPATH": f"{blocker}{os.pathsep}{ROOT}"}
    with tempfile.TemporaryFile() as messages:
        began = time.perf_counter()
        with subprocess.Popen(
            [*command(model, bundle), "--stream", "--max-new-tokens", "64"], stdout=subprocess.PIPE, stderr=messages,
            env=environment, cwd=ROOT,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            text = process.stdout.read(1)
            first = time.perf_counter() - began
            text += process.stdout.read()
        total = time.perf_counter() - began
        messages.seek(0)
        if process.returncode:
            return failed(process.returncode, messages.read())
    done = subprocess.run(
        [*command(model, bundle), "--json", "--max-new-tokens", "2"],
        capture_output=True,
        env=environment,
        cwd=ROOT,
        check=False,
    )
    if done.returncode:
        return failed(done.returncode, done.stderr)
    parts = json.loads(done.stdout)
    own = {key: float(parts[key]) for key in ("load_seconds", "kernel_load_seconds", "first_token_seconds")}
    own |= {f"of it {name}": float(seconds) for name, seconds in parts.get("phases", {}).items()}
    return Run(text, tuple(parts["ids"]), {"to_first_byte": first, "to_exit": total, **own})


def failed(status: int, messages: bytes) -> Run:
    """A run whose process failed."""
    text = messages.decode(errors="replace").strip()
    refuse_shared_card(text)
    return Run(failure=f"status {status}: {text.splitlines()[-1] if text else 'no message'}")
