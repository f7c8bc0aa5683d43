"""Compares weights of eight or four bits in the engine with transformers on this machine's GPU, and times them and weights of
16 bits.

    python3 ci/bench/engine.py fp8_check artifacts/bundles [--models qwen3-0.6b,qwen3-4b,qwen3-8b] [--checked qwen3-0.6b]
    python3 ci/bench/engine.py int4_check artifacts/bundles

Random codes, scales and zero points. For each prompt length, the logits of the prompt's last token and of each of 64 teacher-
forced decode steps are compared with transformers in float32 with the dequantised weights; the error may be 1.1 times that of
transformers in bf16 with these weights rounded to bf16. Then tokens per second of decode, alone and of eight sequences, and the
time of prefill, each also with random weights of 16 bits in a bundle for these. Exit status 1 if an error is too large. Needs
torch, transformers and cuda-bindings; the weights are generated.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from ci.bench.engine.batch_check import batch_speed
from ci.bench.engine.engine_check import STEPS, compared, decode_speed, error_table, our_logits, prefill_speed, too_large
from ci.bench.engine.low_bit_weights import LowBitWeights
from ci.bench.engine.weights import BlockWeights, config_of
from ci.bench.front import Outcome, names
from ci.bench.markdown import grid, page
from engine.backends.cuda import CudaBackend
from engine.backends.load import load_on_gpu
from engine.models.config import ModelConfig

ALLOWED: Final = 1.1
LENGTHS: Final = (1, 17, 512, 3000)
PREFILLS: Final = (18, 512, 2048, 8192)
TOGETHER: Final = 8
NAMES: Final = {"fp8": "FP8", "int4": "INT4"}
"""Formats as tables name them."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this case."""
    parser.add_argument("bundles", type=Path)
    parser.add_argument("--weights", choices=NAMES, default="fp8", help="the format of the linear weights")
    parser.add_argument("--models", default="qwen3-0.6b,qwen3-4b,qwen3-8b")
    parser.add_argument("--checked", default="qwen3-0.6b,qwen3-4b", help="models that are compared with transformers")
    parser.add_argument("--max-seq-len", type=int, default=9000)


def measure(options: argparse.Namespace) -> Outcome:
    """Check and time each model."""
    errors: list[dict[str, Any]] = []
    speeds: list[dict[str, Any]] = []
    for name in names(options.models):
        config = config_of(name)
        weights = LowBitWeights(config, "bf16", options.weights)
        prompts = {length: np.random.default_rng(length).integers(0, config.vocab_size, length + STEPS) for length in LENGTHS}
        backend, speed = _timed(
            options.bundles / f"{name}-{options.weights}-sm_90a.bundle", config, weights, options.max_seq_len
        )
        ours = {length: our_logits(backend, ids, length) for length, ids in prompts.items()}
        backend.close()
        wide, wider = _timed(
            options.bundles / f"{name}-sm_90a.bundle", config, BlockWeights(config, "bf16"), options.max_seq_len
        )
        wide.close()
        speeds.append({"model": name, options.weights: speed, "16bit": wider})
        if name in names(options.checked):
            other: Any = importlib.import_module("ci.bench.engine.transformers_model")
            with other.transformers_model(config, weights, "f32") as model:
                exact, theirs = (other.logits(model, config, dtype, prompts) for dtype in ("f32", "bf16"))
            errors += [{"model": name, **row} for row in compared(ours, theirs, exact)]
        print(speeds[-1], errors[-len(LENGTHS) :], flush=True)
    tables = page(report(errors, speeds, options.weights))
    return Outcome({"errors": errors, "speed": speeds}, {f"{options.name}.md": tables}, int(too_large(errors, ALLOWED)))


def _timed(path: Path, config: ModelConfig, weights: Any, max_seq_len: int) -> tuple[CudaBackend, dict[str, float]]:
    """A loaded backend, the seconds of loading, tokens per second and milliseconds."""
    began = time.perf_counter()
    backend = load_on_gpu(path, config, weights, max_seq_len, "bf16")
    speed = {"load_s": time.perf_counter() - began, "bytes": float(weights.bytes), **decode_speed(backend, config)}
    speed |= {f"eight_at_{length}_tok_s": batch_speed(backend, config, length, TOGETHER) for length in (18, 2048)}
    return backend, speed | prefill_speed(backend, config, list(PREFILLS))


def report(errors: Iterable[Mapping[str, Any]], speeds: Iterable[Mapping[str, Any]], weights: str) -> list[str]:
    """The tables: errors, and for each model both formats and what the one of fewer bits gains."""
    lines = [f"# {NAMES[weights]} weights compared with transformers and with weights of 16 bits, random weights", ""]
    lines += error_table(errors)
    for one in speeds:
        narrow, wide = one[weights], one["16bit"]
        keys = [key for key in narrow if key != "bytes"]
        rows = [[key, f"{narrow[key]:.1f}", f"{wide[key]:.1f}", f"{_gain(key, narrow, wide):.2f}"] for key in keys]
        gigabytes = [f"{speed['bytes'] / 1e9:.2f}" for speed in (narrow, wide)]
        lines += [
            "",
            f"## {one['model']}, {' and '.join(gigabytes)} GB",
            "",
            *grid(("", NAMES[weights], "16 bits", "times as fast"), rows),
        ]
    return lines


def _gain(key: str, narrow: Mapping[str, float], wide: Mapping[str, float]) -> float:
    """How many times as fast fewer bits are: rates grow and times shrink."""
    return narrow[key] / wide[key] if key.endswith("tok_s") else wide[key] / narrow[key]
