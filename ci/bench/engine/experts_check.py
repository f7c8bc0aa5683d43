"""Compares mixtures of experts with transformers on this machine's GPU, and times them: same random weights and tokens.

    python3 ci/bench/engine.py experts_check artifacts/bundles [--models qwen3-30b-a3b] [--layers 8]

Logits are those of the model cut to a few layers, which fits next to transformers in float32. For each prompt length, several
prompts: logits of the prompt's last token, and of each of 64 teacher-forced decode steps, are compared with transformers in
float32. Where two experts are almost equally likely, rounding to 16 bits chooses between them, for transformers as for us. So
distances are means over prompts and steps, and ours may be 1.2 times that of transformers in bf16.

Then the whole model in each format of its weights, without transformers: seconds to load, decode, prefill, batches, and the
launches of a step with their bytes. Exit status 1 if a distance is too large. Needs torch, transformers and cuda-bindings; the
weights are generated.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from ci.bench.engine.batch_check import batch_speed
from ci.bench.engine.engine_check import ALLOWED, STEPS, decode_speed, errors, our_logits, prefill_speed
from ci.bench.engine.low_bit_weights import LowBitWeights
from ci.bench.engine.weights import BlockWeights, config_of, prompt_of
from ci.bench.front import Outcome, names
from ci.bench.markdown import grid, page
from engine.backends.load import load_on_gpu
from engine.models.config import ModelConfig
from engine.tools.profile import profile_decode
from tilec.step.formats import SIXTEEN_BIT

LENGTHS: Final = (1, 17, 100, 512, 3000)
PROMPTS: Final = 3
"""Prompts of each length."""
PREFILLS: Final = (18, 512, 2048, 8192)
TOGETHER: Final = (2, 4, 8)
SLOTS: Final = 10240


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this case."""
    parser.add_argument("bundles", type=Path)
    parser.add_argument("--models", default="qwen3-30b-a3b")
    parser.add_argument("--formats", default="16bit,fp8,int4", help="formats of the weights to time")
    parser.add_argument("--layers", type=int, default=8, help="layers of the model whose logits are compared; 0: none are")


def measure(options: argparse.Namespace) -> Outcome:
    """Check and time each model."""
    found: dict[str, Any] = {}
    failed = False
    for name in names(options.models):
        path = options.bundles / f"{name}-sm_90a.bundle"
        record: dict[str, Any] = {"layers": options.layers, "errors": []}
        if options.layers:
            record["errors"] = list(_distances(replace(config_of(name), num_hidden_layers=options.layers), path))
            failed |= _too_far(record["errors"])
            print(name, record["errors"], flush=True)
        record |= {"speed": {}, "step": {}}
        for form in names(options.formats):
            record["speed"][form], record["step"][form] = _speed(config_of(name), options.bundles, name, form)
            print(name, form, record["speed"][form], record["step"][form], flush=True)
        found[name] = record
    return Outcome({"models": found}, {f"{options.name}.md": page(report(found))}, int(failed))


def _too_far(rows: Sequence[Mapping[str, float]]) -> bool:
    """Whether ours are too far from float32: decode at any length, prompts in the mean of all."""
    means = [float(np.mean([row[f"{of}prefill"] for row in rows])) for of in ("", "transformers_")]
    decodes = [row["decode"] <= ALLOWED * row["transformers_decode"] for row in rows]
    return not (means[0] <= ALLOWED * means[1] and all(decodes))


def _distances(config: ModelConfig, path: Path) -> Iterable[dict[str, Any]]:
    """Mean distances from float32 of our logits and of transformers' in bf16, for each prompt length."""
    weights = BlockWeights(config, "bf16")
    prompts = {
        length: [
            np.random.default_rng([length, number]).integers(0, config.vocab_size, length + STEPS) for number in range(PROMPTS)
        ]
        for length in LENGTHS
    }
    backend = load_on_gpu(path, config, weights, SLOTS, "bf16")
    ours = {length: [our_logits(backend, ids, length) for ids in given] for length, given in prompts.items()}
    backend.close()
    other: Any = importlib.import_module("ci.bench.engine.transformers_model")
    with other.transformers_model(config, weights, "bf16") as model:
        theirs, exact = (
            {
                length: [other.logits(model, config, dtype, {length: ids})[length] for ids in given]
                for length, given in prompts.items()
            }
            for dtype in ("bf16", "f32")
        )
    for length, truths in exact.items():
        row: dict[str, Any] = {"length": length}
        for label, logits in (("", ours[length]), ("transformers_", theirs[length])):
            rows = [errors(one, truth.astype(np.float64)) for one, truth in zip(logits, truths, strict=True)]
            row[f"{label}prefill"] = float(np.mean([one[0] for one in rows]))
            row[f"{label}decode"] = float(np.mean([one[1:] for one in rows]))
        yield row


def _speed(config: ModelConfig, bundles: Path, name: str, form: str) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Seconds to load, tokens per second of decode and of batches, milliseconds of prefill; and the launches of a decode
    step at 18 tokens by kind."""
    plain = form == SIXTEEN_BIT
    weights = BlockWeights(config, "bf16") if plain else LowBitWeights(config, "bf16", form)
    began = time.perf_counter()
    backend = load_on_gpu(bundles / f"{name}{'' if plain else f'-{form}'}-sm_90a.bundle", config, weights, SLOTS, "bf16")
    found = {
        "load_s": time.perf_counter() - began,
        **decode_speed(backend, config),
        **prefill_speed(backend, config, [*PREFILLS]),
    }
    for many in TOGETHER:
        for length in (18, 512):
            found[f"{many}_at_{length}_tok_s"] = batch_speed(backend, config, length, many)
    sequence = backend.begin()
    backend.prefill(sequence, prompt_of(18, config))
    profile = profile_decode(backend, sequence)
    step = [
        {
            "kind": one.name,
            "launches": one.launches,
            "us": one.seconds * 1e6,
            "MB": one.bytes / 1e6,
            "of_floor": profile.share_of_floor(one),
        }
        for one in profile.operations
    ]
    found["step_us"], found["read_TB_s"] = profile.seconds * 1e6, profile.bandwidth / 1e12
    backend.close()
    return found, step


def report(found: Mapping[str, Any]) -> list[str]:
    """The tables: distances, times."""
    lines = ["# Mixtures of experts beside transformers, random weights"]
    for name, record in found.items():
        lines += ["", f"## {name}", ""]
        if record["errors"]:
            cells = [
                [
                    row["length"],
                    *(
                        f"{row[kind]:.4f}, {row[f'transformers_{kind}']:.4f}, {row[kind] / row[f'transformers_{kind}']:.2f}"
                        for kind in ("prefill", "decode")
                    ),
                ]
                for row in record["errors"]
            ]
            header = (
                "prompt", f"prefill of {PROMPTS} prompts, mean: ours, transformers, ratio",
                f"{STEPS} decode steps of each, mean: ours, transformers, ratio",
            )  # fmt: skip
            lines += [f"Logits of {record['layers']} layers, distance from float32:", "", *grid(header, cells), ""]
        speeds = record["speed"]
        rows = [[key, *(f"{speed[key]:.1f}" for speed in speeds.values())] for key in next(iter(speeds.values()))]
        lines += ["The whole model:", "", *grid(("", *speeds), rows)]
        for form, step in record["step"].items():
            cells = [
                [one["kind"], one["launches"], f"{one['us']:.2f}", f"{one['MB']:.2f}", f"{one['of_floor']:.2f}"] for one in step
            ]
            lines += ["", f"Launches of a decode step, 18 filled slots, {form}:", ""]
            lines += grid(("kind", "launches", "us of one", "MB of one", "floor over time"), cells)
    return lines
