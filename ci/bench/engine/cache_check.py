"""Times decode with a cache of FP8 codes and with one of 16 bits on this machine's GPU, and compares logits with float32.

    python3 ci/bench/engine.py cache_check artifacts/bundles [--models qwen3-4b] [--slots 2048,8192,32768]

Random weights of 16 bits, in bundles packed with `--cache 16bit,fp8`. For each number of filled slots, tokens per second of
decode, the time of a step, and that of its attention alone: all launches of a kind in a CUDA graph of their own, each with its
own layer's cache (`engine.tools.profile`). Then eight sequences, and the time of prefill. For each prompt length, logits of the
prompt's last token and of each of 64 teacher-forced decode steps are compared with transformers in float32, for both caches and
for transformers in bf16. Exit status 1 if a logit is no number. Needs cuda-bindings, and without `--skip-check` torch and
transformers; the weights are generated.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from ci.bench.engine.batch_check import batch_speed
from ci.bench.engine.engine_check import STEPS, errors, our_logits, prefill_speed
from ci.bench.engine.weights import BlockWeights, config_of, prompt_of
from ci.bench.front import Outcome, names
from ci.bench.markdown import grid, page
from engine.backends.cuda import CudaBackend
from engine.backends.load import load_on_gpu
from engine.models.config import ModelConfig
from engine.options import CACHE_FORMATS
from engine.tools.profile import profile_decode

LENGTHS: Final = (17, 512, 3000)
PREFILLS: Final = (18, 2048)
TOGETHER: Final = 8
BATCH_SLOTS: Final = 2048
COUNTED: Final = 128
"""Tokens that a rate is the mean of."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this case."""
    parser.add_argument("bundles", help="folder of the bundles", type=str)
    parser.add_argument("--models", default="qwen3-4b")
    parser.add_argument("--slots", default="2048,8192,32768", help="filled slots to time a step at")
    parser.add_argument("--skip-check", action="store_true", help="only times, without transformers")


def measure(options: argparse.Namespace) -> Outcome:
    """Time and check each model."""
    slots = [int(text) for text in names(options.slots)]
    found: dict[str, Any] = {}
    failed = False
    for name in names(options.models):
        config, weights = config_of(name), BlockWeights(config_of(name), "bf16")
        prompts = {length: np.random.default_rng(length).integers(0, config.vocab_size, length + STEPS) for length in LENGTHS}
        record: dict[str, Any] = {"speed": {}, "errors": []}
        ours: dict[str, dict[int, Any]] = {}
        for cache in CACHE_FORMATS:
            middle = "" if cache == "16bit" else f"-cache-{cache}"
            path = f"{options.bundles}/{name}{middle}-sm_90a.bundle"
            backend = load_on_gpu(path, config, weights, max(slots) + 2 * COUNTED, "bf16", cache_format=cache)
            record["speed"][cache] = speed(backend, config, slots)
            ours[cache] = {length: our_logits(backend, ids, length) for length, ids in prompts.items()}
            backend.close()
            failed |= not all(np.isfinite(logits).all() for logits in ours[cache].values())
            print(name, cache, record["speed"][cache], flush=True)
        record["ratio"] = {count: _ratio(record["speed"], f"attention_at_{count}_us") for count in slots}
        if not options.skip_check:
            other: Any = importlib.import_module("ci.bench.engine.transformers_model")
            with other.transformers_model(config, weights, "bf16") as model:
                theirs, exact = (other.logits(model, config, dtype, prompts) for dtype in ("bf16", "f32"))
            record["errors"] = list(_errors({**ours, "transformers": theirs}, exact))
        found[name] = record
        print(name, record["ratio"], record["errors"], flush=True)
    return Outcome({"models": found}, {"cache_check.md": page(report(found))}, int(failed))


def speed(backend: CudaBackend, config: ModelConfig, slots: Iterable[int]) -> dict[str, float]:
    """Times with one cache: of steps and of their attention at several numbers of filled slots, of a batch, of prefill."""
    found: dict[str, float] = {}
    for count in slots:
        sequence = backend.begin()
        backend.prefill(sequence, prompt_of(count - 1, config))
        token, rates = backend.token(), list[float]()
        for _ in range(4):
            sequence.length = count - 1
            began = time.perf_counter()
            made = sum(1 for _ in backend.stream_tokens(sequence, token, COUNTED))
            rates.append(made / (time.perf_counter() - began))
        sequence.length = count
        profile = profile_decode(backend, sequence)
        attention = [one for one in profile.operations if one.name.endswith((".attention", ".merge"))]
        found[f"decode_at_{count}_tok_s"] = sorted(rates[1:])[1]
        found[f"step_at_{count}_us"] = profile.seconds * 1e6
        found[f"attention_at_{count}_us"] = sum(one.seconds * one.launches for one in attention) * 1e6
        found[f"attention_at_{count}_MB"] = sum(one.bytes * one.launches for one in attention) / 1e6
        found["TB_s"] = profile.bandwidth / 1e12
    found[f"eight_at_{BATCH_SLOTS}_tok_s"] = batch_speed(backend, config, BATCH_SLOTS, TOGETHER)
    return found | prefill_speed(backend, config, list(PREFILLS))


def _ratio(speeds: Mapping[str, Mapping[str, float]], key: str) -> float:
    return speeds["fp8"][key] / speeds["16bit"][key]


def _errors(given: Mapping[str, Mapping[int, Any]], exact: Mapping[int, Any]) -> Iterable[dict[str, Any]]:
    """Relative distances from float32, of the prompt's last token and the mean of decode steps, for each prompt length."""
    for length, truth in exact.items():
        for name, logits in given.items():
            rows = errors(logits[length], truth.astype(np.float64))
            yield {"length": length, "of": name, "prefill": rows[0], "decode": sum(rows[1:]) / STEPS}


def report(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The tables: times with both caches, and distances."""
    lines = ["# A cache of FP8 codes compared with one of 16 bits, random weights", ""]
    for name, record in found.items():
        wide, narrow = (record["speed"][cache] for cache in CACHE_FORMATS)
        rows = [[key, f"{wide[key]:.1f}", f"{narrow[key]:.1f}", f"{narrow[key] / wide[key]:.2f}"] for key in wide]
        lines += [f"## {name}", "", *grid(("", "16 bits", "FP8", "FP8 over 16 bits"), rows), ""]
        cells = [[one["length"], one["of"], f"{one['prefill']:.4f}", f"{one['decode']:.4f}"] for one in record["errors"]]
        lines += grid(("prompt", "logits of", "distance of the prompt's", f"mean of {STEPS} decode steps"), cells)
    return lines
