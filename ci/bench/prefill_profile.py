"""Where the time of a prompt goes on this machine's GPU: every kind of operation of its prefill, in its place and beside its
floor.

    python3 ci/bench/prefill_profile.py artifacts/bundles [--model qwen3-4b] [--lengths 2048,8192] [--chunk 1024]

Prompts of random tokens run as the engine runs them, while the driver notes when each kernel begins and ends (CUPTI, by
torch's profiler). `each`: from its first block to its last, which may wait for the kernel before. `adds`: how much later the
prompt ends for the launch, from the end of all before it to its own; these sum to the whole. A launch done alone, or left out,
would tell less: the chip's power is the bound, and what a product draws follows from its data. The floor of a launch is its
bytes (of activations too) at BYTES_RATE or its products at FLOPS_RATE, whichever is longer. Weights are random. Prints a table
per length, and writes `prefill_profile.json` and `.md`. Needs torch.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "ci" / "bench")]

from engine_check import BlockWeights, config_of, prompt_of  # noqa: E402

from engine.backends.cuda import CudaBackend  # noqa: E402
from engine.graph.traffic import traffic  # noqa: E402
from engine.tools.profile import kinds  # noqa: E402
from tilec.runtime import open_bundle  # noqa: E402
from tilec.step.graph import Op, StepGraph  # noqa: E402

BYTES_RATE: Final = 4.6e12
"""Bytes a second of the fastest read seen on an H200."""
FLOPS_RATE: Final = 670e12
"""Operations a second of cuBLAS's products of 8192 rows there, where the chip's power is the bound."""
RUNS: Final = 7
"""Prompts of each length, of which the median counts, the first left out."""

Span = tuple[float, float]
"""When a kernel began and ended, microseconds."""


@dataclass(frozen=True, slots=True)
class Row:
    """A kind of operation in a prompt: launches, and milliseconds of them together."""

    name: str
    kernel: str
    launches: int
    floor: float
    each: float
    adds: float


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk's graph and the tokens before it."""

    graph: StepGraph
    past: int


@dataclass(frozen=True, slots=True)
class Found:
    """A length: milliseconds of the prompt until its token is on the host, and of its kernels; its kinds."""

    tokens: int
    chunk: int
    prompt: float
    kernels: float
    rows: tuple[Row, ...]


def main() -> int:
    """Load a model, profile each length, report."""
    parser = argparse.ArgumentParser(description="where the time of a prompt goes")
    parser.add_argument("bundles", type=Path)
    parser.add_argument("--model", default="qwen3-4b")
    parser.add_argument("--lengths", default="512,2048,8192")
    parser.add_argument("--chunk", type=int, default=0, help="tokens of a chunk; the engine's own without it")
    parser.add_argument("--name", default="prefill_profile", help="of the written files")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ROOT / "ci" / "bench" / "results")))
    options = parser.parse_args()
    lengths = [int(text) for text in options.lengths.split(",")]
    torch: Any = importlib.import_module("torch")
    torch.zeros(1, device="cuda")  # its context, which the engine's then is
    config = config_of(options.model)
    backend = CudaBackend(open_bundle(options.bundles / f"{options.model}-sm_90a.bundle"))
    backend.chunk_tokens = options.chunk or backend.chunk_tokens
    backend.load(config, BlockWeights(config, "bf16"), max(lengths))
    try:
        found = [profile(backend, length) for length in lengths]
    finally:
        backend.close()
    return report(options.model, backend.device.name, found, options.out / options.name)


def profile(backend: CudaBackend, length: int) -> Found:
    """A prompt of random tokens: whole, and kind by kind."""
    ids = prompt_of(length, backend.config)
    prompt = statistics.median([timed_prompt(backend, ids) for _ in range(RUNS)][1:])
    chunks = chunks_of(backend, length)
    spans = traced(backend, ids)
    if len(spans) != sum(len(chunk.graph.ops) for chunk in chunks):
        raise SystemExit(f"{len(spans)} kernels ran where the step has {sum(len(one.graph.ops) for one in chunks)} launches")
    whole = (max(end for _, end in spans) - spans[0][0]) / 1e3
    return Found(length, backend.chunk_tokens, prompt, whole, rows_of(backend, chunks, spans))


def chunks_of(backend: CudaBackend, length: int) -> list[Chunk]:
    """The steps of a prompt, as the engine cuts it."""
    made: list[Chunk] = []
    for past in range(0, length, backend.chunk_tokens):
        tokens = min(backend.chunk_tokens, length - past)
        head = "argmax" if past + tokens == length else "none"
        made.append(Chunk(backend.step.graph("prefill", head, tokens=tokens, past=past), past))
    return made


def timed_prompt(backend: CudaBackend, ids: list[int]) -> float:
    """Milliseconds until the first token is on the host."""
    sequence = backend.begin()
    began = time.perf_counter()
    backend.prefill(sequence, ids)
    backend.token()
    return (time.perf_counter() - began) * 1e3


def traced(backend: CudaBackend, ids: list[int]) -> list[Span]:
    """Begin and end of every kernel of the last of three prompts, in the order in which they began."""
    profiler: Any = importlib.import_module("torch.profiler")
    with profiler.profile(activities=[profiler.ProfilerActivity.CUDA]) as made:
        for _ in range(3):
            timed_prompt(backend, ids)
    kernels = [event for event in made.events() if "CUDA" in str(event.device_type) and not event.name.startswith("Mem")]
    spans = sorted((event.time_range.start, event.time_range.end) for event in kernels)
    return spans[-(len(spans) // 3) :]


def rows_of(backend: CudaBackend, chunks: Sequence[Chunk], spans: Sequence[Span]) -> tuple[Row, ...]:
    """Each kind of operation; launches run in the order of the steps."""
    added = additions(spans)
    kernels: dict[str, str] = {}
    sums: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0, 0.0])
    first = 0
    for chunk in chunks:
        for name, positions in kinds(chunk.graph).items():
            for position in positions:
                op, (begin, end) = chunk.graph.ops[position], spans[first + position]
                kernels[name] = op.kernel
                values = (1, floor_of(backend, chunk, op), (end - begin) / 1e3, added[first + position] / 1e3)
                sums[name] = [total + value for total, value in zip(sums[name], values, strict=True)]
        first += len(chunk.graph.ops)
    return tuple(Row(name, kernels[name], int(count), *times) for name, (count, *times) in sums.items())


def additions(spans: Sequence[Span]) -> list[float]:
    """How much later the whole ends for each, gaps in front included: from the end of all before it to its own."""
    found: list[float] = []
    latest = spans[0][0] if spans else 0.0
    for _, end in spans:
        found.append(max(0.0, end - latest))
        latest = max(latest, end)
    return found


def floor_of(backend: CudaBackend, chunk: Chunk, op: Op) -> float:
    """Milliseconds that a launch cannot go below."""
    moved = traffic(chunk.graph, op, chunk.past + chunk.graph.tokens, backend.contract(op))
    return 1e3 * max(moved / BYTES_RATE, products_of(chunk, op) / FLOPS_RATE)


def products_of(chunk: Chunk, op: Op) -> float:
    """Operations of tensor cores in a launch."""
    shapes = {name: view.shape for name, view in op.tensors.items()}
    if op.kernel == "flash_attention":
        tokens, *heads, width = shapes["q"]
        return 4.0 * tokens * (chunk.past + (tokens + 1) / 2) * prod(heads) * width
    if op.kernel.startswith("matmul"):
        return 2.0 * shapes["a"][0] * prod(shapes["b"])
    return 0.0


def report(model: str, gpu: str, found: Sequence[Found], path: Path) -> int:
    """Write and print the tables."""
    lines = [f"# Where the time of a prompt goes: {model}, {gpu}", ""]
    lines += [
        f"Milliseconds. Floor: bytes at {BYTES_RATE / 1e12} TB/s or products at {FLOPS_RATE / 1e12:.0f} TFLOP/s. Each: from",
        "first to last block, which may wait for the kernel before. Adds: how much later the prompt ends for it.",
        "",
    ]
    for one in found:
        lines += [f"## {one.tokens} tokens in chunks of {one.chunk}: {one.prompt:.2f} ms, {one.kernels:.2f} of kernels", ""]
        lines += ["| operation | kernel | launches | floor | each | adds | floor over adds |", "|---|---|--:|--:|--:|--:|--:|"]
        for row in sorted(one.rows, key=lambda row: row.floor - row.adds):
            share = f"{row.floor / row.adds:.2f}" if row.adds else ""
            cells = f"{row.launches} | {row.floor:.3f} | {row.each:.3f} | {row.adds:.3f} | {share}"
            lines.append(f"| {row.name} | {row.kernel} | {cells} |")
        floor, adds = sum(row.floor for row in one.rows), sum(row.adds for row in one.rows)
        launches = sum(row.launches for row in one.rows)
        lines += [f"| sum | | {launches} | {floor:.3f} | | {adds:.3f} | {floor / adds:.2f} |", ""]
    record = {"model": model, "gpu": gpu, "lengths": [asdict(one) for one in found]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
