"""Times the engine from process start to its first token, with a model's real files in the page cache.

    python3 ci/bench/engine.py cold_start artifacts/bundles/qwen3-4b-sm_90a.bundle FOLDER [--model qwen3-4b] [--runs 5]

FOLDER has config, tokenizer and chat template; random weights, sharded like published models, are written next to copies of
them in a temporary folder. Every run is a new process in which no compiler can be imported. Exit status 1 if a goal is missed:
6 s to the first token, 150 ms for the kernels.
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
from pathlib import Path
from typing import Any, Final

from ci.bench.engine.weights import BlockWeights, config_of
from ci.bench.front import Outcome
from ci.bench.markdown import grid, page
from ci.evidence import ROOT

GOALS: Final = {"to_first_byte": 6.0, "kernel_load_seconds": 0.150}
"""The most seconds of a run."""
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
    """Write the files, run, compare with the goals."""
    with tempfile.TemporaryDirectory() as name:
        model, blocker = Path(name) / "model", Path(name) / "blocker"
        shutil.copytree(options.folder, model)
        blocker.mkdir()
        (blocker / "sitecustomize.py").write_text(BLOCKER)
        size = write_weights(model, options.model)
        runs = [one(model, options.bundle.resolve(), blocker) for _ in range(options.runs + 1)][1:]
    worst = {key: max(run[key] for run in runs) for key in runs[0]}
    rows = [
        (key, f"{statistics.median(run[key] for run in runs):.3f}", f"{worst[key]:.3f}", GOALS.get(key, "")) for key in worst
    ]
    title = f"# From process start to the first token: {options.model}, {size / 1e9:.2f} GB of weights"
    lines = [title, "", *grid(("seconds", "median", "worst", "goal"), rows)]
    lines += ["", f"Not importable in these processes: {', '.join(FORBIDDEN)}."]
    missed = any(worst[key] > goal for key, goal in GOALS.items())
    record = {"model": options.model, "weight_bytes": size, "runs": runs}
    return Outcome(record, {"cold_start.md": page(lines)}, int(missed))


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


def one(model: Path, bundle: Path, blocker: Path) -> dict[str, float]:
    """Seconds of one process to its first output byte, and timings reported by a second one."""
    command = [sys.executable, "-m", "engine", "--model", str(model), "--bundle", str(bundle)]
    command += ["--prompt", "Hello", "--raw-prompt"]
    environment = {**os.environ, "PYTHONPATH": f"{blocker}{os.pathsep}{ROOT}"}
    began = time.perf_counter()
    with subprocess.Popen(
        [*command, "--stream", "--max-new-tokens", "64"], stdout=subprocess.PIPE, env=environment, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        first = time.perf_counter() - began
        process.stdout.read()
    total = time.perf_counter() - began
    assert process.returncode == 0
    done = subprocess.run(
        [*command, "--json", "--max-new-tokens", "2"], capture_output=True, env=environment, cwd=ROOT, check=True
    )
    parts = json.loads(done.stdout)
    keys = ("load_seconds", "kernel_load_seconds", "first_token_seconds")
    return {"to_first_byte": first, "to_exit": total, **{key: parts[key] for key in keys}}
