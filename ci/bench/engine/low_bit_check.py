"""Compares weights of eight or four bits with transformers on this machine's GPU, and times them and weights of 16 bits.

    python3 ci/bench/engine.py fp8_check artifacts/bundles [--models qwen3-0.6b,qwen3-4b,qwen3-8b] [--checked qwen3-0.6b]
    python3 ci/bench/engine.py int4_check artifacts/bundles

Random codes, scales and zero points. For each prompt length, the logits of the prompt's last token and of each of 64 teacher-
forced decode steps are compared with transformers in float32 with the dequantised weights; the error may be 1.1 times that of
transformers in bf16 with these weights rounded to bf16. Then tokens per second of decode, alone and of eight sequences, and
the time of prefill, each also with random weights of 16 bits in a bundle for these. Next to a rate is its share of the floor:
that of a step's bytes over the bandwidth. Of the models of `--decoded` decode alone is timed, and of those of `--heads` with
the LM head in fewer bits too. Exit status 1 if an error is too large. Needs torch, transformers and cuda-bindings; the
weights are generated.
"""

from __future__ import annotations

import argparse
import importlib
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from ci.bench.engine.batch_check import batch_speed
from ci.bench.engine.engine_check import STEPS, compared, decode_speed, error_table, our_logits, prefill_speed, too_large
from ci.bench.engine.floors import step_of
from ci.bench.engine.low_bit_weights import LowBitWeights
from ci.bench.engine.weights import BlockWeights, config_of
from ci.bench.front import Outcome, names
from ci.bench.markdown import grid, page
from engine.backends.cuda import CudaBackend
from engine.backends.load import load_on_gpu
from engine.checkpoint.weights import Weights
from engine.models.config import ModelConfig

ALLOWED: Final = 1.1
LENGTHS: Final = (1, 17, 512, 3000)
PREFILLS: Final = (18, 512, 2048, 8192)
TOGETHER: Final = 8
DECODED: Final = 128
"""Tokens of a run whose rate is taken: in the mean a sequence has half of them more in its cache."""
RATE: Final = re.compile(r"(decode|eight)_at_(\d+)_tok_s")
NAMES: Final = {"fp8": "FP8", "int4": "INT4"}
"""Formats as tables name them."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this case."""
    parser.add_argument("bundles", type=Path)
    parser.add_argument("--weights", choices=NAMES, default="fp8", help="the format of the linear weights")
    parser.add_argument("--models", default="qwen3-0.6b,qwen3-4b,qwen3-8b")
    parser.add_argument("--checked", default="qwen3-0.6b,qwen3-4b", help="models that are compared with transformers")
    parser.add_argument("--decoded", default="qwen3-32b", help="further models, of which decode is timed")
    parser.add_argument("--heads", default="qwen3-4b", help="models whose decode is timed with a head of fewer bits too")
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
    further = [(name, options.weights) for name in names(options.decoded)]
    further += [(name, f"{options.weights}_head") for name in names(options.heads)]
    decoded = [{"model": name, "weights": form, **_decoded(options, name, form)} for name, form in further]
    tables = page(report(errors, speeds, decoded, options.weights))
    found = {"errors": errors, "speed": speeds, "decoded": decoded}
    return Outcome(found, {f"{options.name}.md": tables}, int(too_large(errors, ALLOWED)))


def _timed(path: Path, config: ModelConfig, weights: Any, max_seq_len: int) -> tuple[CudaBackend, dict[str, float]]:
    """A loaded backend, the seconds of loading, tokens per second and milliseconds."""
    began = time.perf_counter()
    backend = load_on_gpu(path, config, weights, max_seq_len, "bf16")
    speed = {"load_s": time.perf_counter() - began, "bytes": float(weights.bytes), **decode_speed(backend, config)}
    speed |= {f"eight_at_{length}_tok_s": batch_speed(backend, config, length, TOGETHER) for length in (18, 2048)}
    speed |= shares_of_floor(config, weights, speed)
    return backend, speed | prefill_speed(backend, config, list(PREFILLS))


def _decoded(options: argparse.Namespace, name: str, form: str) -> dict[str, float]:
    """Bytes of the weights, tokens per second of one sequence and of eight, and their shares of the floor."""
    config = config_of(name)
    weights = LowBitWeights(config, "bf16", form)
    backend = load_on_gpu(options.bundles / f"{name}-{form}-sm_90a.bundle", config, weights, 4096, "bf16")
    speed = {"bytes": float(weights.bytes), **decode_speed(backend, config)}
    speed["eight_at_18_tok_s"] = batch_speed(backend, config, 18, TOGETHER)
    backend.close()
    speed |= shares_of_floor(config, weights, speed)
    print(name, form, speed, flush=True)
    return speed


def shares_of_floor(config: ModelConfig, weights: Weights, speed: Mapping[str, float]) -> dict[str, float]:
    """Of each rate, its share of that at which a step's bytes come at the bandwidth."""
    found: dict[str, float] = {}
    for key, rate in speed.items():
        if match := RATE.fullmatch(key):
            many, tokens = TOGETHER if match[1] == "eight" else 1, int(match[2]) + DECODED / 2
            found[f"{key}_share"] = rate * step_of(config, weights.destinations, many, tokens).floor / many
    return found


def report(
    errors: Iterable[Mapping[str, Any]],
    speeds: Iterable[Mapping[str, Any]],
    decoded: Iterable[Mapping[str, Any]],
    weights: str,
) -> list[str]:
    """The tables: errors, for each model both formats and what the one of fewer bits gains, and further rates."""
    lines = [f"# {NAMES[weights]} weights compared with transformers and with weights of 16 bits, random weights", ""]
    lines += error_table(errors)
    for one in speeds:
        narrow, wide = one[weights], one["16bit"]
        keys = [key for key in narrow if key != "bytes" and not key.endswith("_share")]
        rows = [
            [
                key,
                *(f"{one[key]:.1f}" for one in (narrow, wide)),
                f"{_gain(key, narrow, wide):.2f}",
                *_shares(key, narrow, wide),
            ]
            for key in keys
        ]
        gigabytes = [f"{speed['bytes'] / 1e9:.2f}" for speed in (narrow, wide)]
        lines += [
            "",
            f"## {one['model']}, {' and '.join(gigabytes)} GB",
            "",
            *grid(("", NAMES[weights], "16 bits", "times as fast", f"{NAMES[weights]}, of the floor", "16 bits"), rows),
        ]
    further = [
        [one["model"], one["weights"], f"{one['bytes'] / 1e9:.2f}", key, f"{rate:.1f}", *_shares(key, one)]
        for one in decoded
        for key, rate in one.items()
        if RATE.fullmatch(key)
    ]
    header = ("model", "weights", "GB", "", "tokens/s", "of the floor")
    return [*lines, "", "## Decode of further models and formats", "", *grid(header, further, left=2)]


def _shares(key: str, *speeds: Mapping[str, Any]) -> list[str]:
    """Shares of the floor, of what is a rate."""
    return [f"{share:.2f}" if (share := speed.get(f"{key}_share")) is not None else "" for speed in speeds]


def _gain(key: str, narrow: Mapping[str, float], wide: Mapping[str, float]) -> float:
    """How many times as fast fewer bits are: rates grow and times shrink."""
    return narrow[key] / wide[key] if key.endswith("tok_s") else wide[key] / narrow[key]
