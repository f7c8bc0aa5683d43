"""Compares mixtures of experts with transformers on this machine's GPU, and times them: same random weights and tokens.

    python3 ci/bench/engine.py experts_check artifacts/bundles [--models qwen3-30b-a3b] [--layers 8]

Logits are those of the model cut to a few layers, which fits next to transformers in float32. For each prompt length, several
prompts: logits of the prompt's last token, and of each of 64 teacher-forced decode steps, are compared with transformers in
float32. Where two experts are almost equally likely, rounding to 16 bits chooses between them, for transformers as for us. So
distances are means over prompts and steps, and ours may be 1.2 times that of transformers in bf16. Of 200 greedy tokens of
ours, it counts those that float32 chooses after the same tokens, as many of those of transformers in bf16, and how far below
the best logit in float32 a token of ours is.

Then the whole model in each format of its weights, without transformers: seconds to load, decode, prefill, batches with their
shares of the floor, and the launches of a step with their bytes. Exit status 1 if a distance is too large. Needs torch,
transformers and cuda-bindings; the weights are generated.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ci.bench.engine.batch_check import batch_speed
from ci.bench.engine.engine_check import ALLOWED, STEPS, decode_speed, errors, our_logits, prefill_speed
from ci.bench.engine.floors import step_of
from ci.bench.engine.low_bit_check import DECODED
from ci.bench.engine.low_bit_weights import LowBitWeights
from ci.bench.engine.weights import BlockWeights, config_of, prompt_of
from ci.bench.front import Outcome, names
from ci.bench.markdown import grid, page
from engine.backends.cuda import CudaBackend
from engine.backends.load import load_on_gpu
from engine.models.config import ModelConfig
from engine.tools.profile import profile_decode
from tilec.step.formats import SIXTEEN_BIT

LENGTHS: Final = (1, 17, 100, 512, 3000)
PROMPTS: Final = 3
"""Prompts of each length."""
PREFILLS: Final = (18, 512, 2048, 8192)
TOGETHER: Final = (2, 4, 8)
GREEDY: Final = 200
"""Greedy tokens after a prompt of `PROMPT` that are compared with those that float32 chooses."""
PROMPT: Final = 17
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
            record["errors"], record["greedy"] = _compared(replace(config_of(name), num_hidden_layers=options.layers), path)
            failed |= _too_far(record["errors"])
            print(name, record["errors"], record["greedy"], flush=True)
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


def _compared(config: ModelConfig, path: Path) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Mean distances from float32 of our logits and of transformers' in bf16, for each prompt length; and greedy tokens."""
    weights = BlockWeights(config, "bf16")
    prompts = {
        length: [
            np.random.default_rng([length, number]).integers(0, config.vocab_size, length + STEPS) for number in range(PROMPTS)
        ]
        for length in LENGTHS
    }
    backend = load_on_gpu(path, config, weights, SLOTS, "bf16")
    ours = {length: [our_logits(backend, ids, length) for ids in given] for length, given in prompts.items()}
    chosen = np.array([*prompt_of(PROMPT, config), *_greedy(backend, config)])
    backend.close()
    other: Any = importlib.import_module("ci.bench.engine.transformers_model")
    with other.transformers_model(config, weights, "bf16") as model:
        theirs, exact = ({key: [_of(other, model, config, dtype, key, ids) for ids in given] for key, given in prompts.items()}
                         for dtype in ("bf16", "f32"))  # fmt: skip
        rows = [_distance(length, ours[length], theirs[length], truths) for length, truths in exact.items()]
        steps = {dtype: _of(other, model, config, dtype, PROMPT, chosen)[:-1] for dtype in ("f32", "bf16")}
    return rows, agreement(chosen[PROMPT:], steps["bf16"], steps["f32"])


def _of(other: Any, model: Any, config: ModelConfig, dtype: str, length: int, ids: Any) -> Any:
    """Logits of transformers in a dtype, from the last token of a prompt of that length on."""
    return other.logits(model, config, dtype, {length: ids})[length]


def _greedy(backend: CudaBackend, config: ModelConfig) -> list[int]:
    """The greedy tokens after a prompt."""
    sequence = backend.begin()
    backend.prefill(sequence, prompt_of(PROMPT, config))
    first = backend.token()
    return [first, *backend.stream_tokens(sequence, first, GREEDY - 1)]


def agreement(chosen: NDArray[Any], in_16_bits: NDArray[Any], exact: NDArray[Any]) -> dict[str, float]:
    """Of greedy tokens of ours, how many float32 chooses after the same tokens, how many transformers in bf16 then chooses, and
    the largest distance of the logit of a token of ours from the best one in float32, over the deviation of logits."""
    best = exact.argmax(-1)
    below = (exact.max(-1) - exact[np.arange(len(chosen)), chosen]) / exact.std(-1)
    return {
        "tokens": len(chosen),
        "equal": int((chosen == best).sum()),
        "transformers_equal": int((in_16_bits.argmax(-1) == best).sum()),
        "below": float(below.max()),
    }


def _distance(length: int, ours: Sequence[Any], theirs: Sequence[Any], exact: Sequence[Any]) -> dict[str, Any]:
    """Mean distances from float32 of prompts of one length, and of the steps after them."""
    row: dict[str, Any] = {"length": length}
    for label, logits in (("", ours), ("transformers_", theirs)):
        rows = [errors(one, truth.astype(np.float64)) for one, truth in zip(logits, exact, strict=True)]
        row[f"{label}prefill"] = float(np.mean([one[0] for one in rows]))
        row[f"{label}decode"] = float(np.mean([one[1:] for one in rows]))
    return row


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
            found[key := f"{many}_at_{length}_tok_s"] = batch_speed(backend, config, length, many)
            work = step_of(config, weights.destinations, many, length + DECODED / 2)
            found[f"{key}_share"] = found[key] * work.floor / many
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
    lines = ["# Mixtures of experts compared with transformers, random weights"]
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
            lines += [_greedy_line(record["greedy"]), ""]
        speeds = record["speed"]
        rows = [
            [key, *(f"{speed[key]:.1f}" for speed in speeds.values()), *_shares(key, speeds)]
            for key in next(iter(speeds.values()))
            if not key.endswith("_share")
        ]
        lines += ["The whole model:", "", *grid(("", *speeds, *(f"{form}, of the floor" for form in speeds)), rows)]
        for form, step in record["step"].items():
            cells = [
                [one["kind"], one["launches"], f"{one['us']:.2f}", f"{one['MB']:.2f}", f"{one['of_floor']:.2f}"] for one in step
            ]
            lines += ["", f"Launches of a decode step, 18 filled slots, {form}:", ""]
            lines += grid(("kind", "launches", "us of one", "MB of one", "floor over time"), cells)
    return lines


def _greedy_line(greedy: Mapping[str, float]) -> str:
    return (
        f"Of {greedy['tokens']} greedy tokens, float32 chooses {greedy['equal']} after the same tokens, and of those of "
        f"transformers in bf16 {greedy['transformers_equal']}; a token of ours is at most {greedy['below']:.4f} deviations "
        "below the best."
    )


def _shares(key: str, speeds: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Shares of the floor in each format, of what is a rate of a batch."""
    return [f"{speed[f'{key}_share']:.2f}" if f"{key}_share" in speed else "" for speed in speeds.values()]
