"""Times the engine from process start to its first token, with a model's real files in the page cache.

    python3 ci/bench/cold_start.py artifacts/bundles/qwen3-4b-sm_90a.bundle FOLDER [--model qwen3-4b] [--runs 5]

FOLDER has config, tokenizer and chat template; random weights, sharded like published models, are written next to copies of
them in a temporary folder. Every run is a new process in which no compiler can be imported. Writes `cold_start.json` and `.md`;
exit code 1 if a goal is missed: 6 s to the first token, 150 ms for the kernels.
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

ROOT: Final = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "ci" / "bench")]

from engine_check import BlockWeights, config_of  # noqa: E402

FIRST_TOKEN_GOAL: Final = 6.0
KERNELS_GOAL: Final = 0.150
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


def main() -> int:
    """Write the files, run, report."""
    parser = argparse.ArgumentParser(description="time the engine from process start to its first token")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="qwen3-4b")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ROOT / "ci" / "bench" / "results")))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        model, blocker = Path(name) / "model", Path(name) / "blocker"
        shutil.copytree(options.folder, model)
        blocker.mkdir()
        (blocker / "sitecustomize.py").write_text(BLOCKER)
        size = write_weights(model, options.model)
        runs = [one(model, options.bundle.resolve(), blocker) for _ in range(options.runs + 1)][1:]
    record = {"model": options.model, "weight_bytes": size, "runs": runs}
    return report(record, options.out)


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
    command = [
        sys.executable,
        "-m",
        "engine",
        "--model",
        str(model),
        "--bundle",
        str(bundle),
        "--prompt",
        "Hello",
        "--raw-prompt",
    ]
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


def report(record: dict[str, Any], folder: Path) -> int:
    """Write and print the table."""
    runs: list[dict[str, float]] = record["runs"]
    lines = [
        f"# From process start to the first token: {record['model']}, {record['weight_bytes'] / 1e9:.2f} GB of weights",
        "",
    ]
    lines += ["| seconds | median | worst | goal |", "|---|--:|--:|--:|"]
    goals = {"to_first_byte": FIRST_TOKEN_GOAL, "kernel_load_seconds": KERNELS_GOAL}
    ok = True
    for key in runs[0]:
        values = [run[key] for run in runs]
        ok = ok and max(values) <= goals.get(key, max(values))
        lines.append(f"| {key} | {statistics.median(values):.3f} | {max(values):.3f} | {goals.get(key, '')} |")
    lines += ["", f"Not importable in these processes: {', '.join(FORBIDDEN)}."]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cold_start.json").write_text(json.dumps(record, indent=1) + "\n")
    (folder / "cold_start.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    return int(not ok)


if __name__ == "__main__":
    sys.exit(main())
