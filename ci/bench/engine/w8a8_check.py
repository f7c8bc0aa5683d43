"""Compares prompts with FP8 weights and FP8 activations with transformers, and times them and both other formats.

    python3 ci/bench/engine.py w8a8_check artifacts/bundles [--models qwen3-4b,qwen3-8b] [--checked qwen3-0.6b,qwen3-4b]

Random codes and scales. The logits of each prompt's last token and of each of 64 teacher-forced decode steps are compared with
transformers in float32 with the dequantised weights and activations as they are. The error may be 1.1 times that of
transformers in bf16 whose projections take activations as its FP8 linear layers quantise them: e4m3, with a scale for each 128
of a token, the largest magnitude over 448. There every token's are quantised; here those of a prompt, of which the last token
alone has 16 bits after attention in the last layer. The error of FP8 weights alone is listed too. Then the milliseconds of
prompts with weights of 16 bits, FP8 weights, and both operands in FP8. Exit status 1 if an error is too large. Needs torch,
transformers and cuda-bindings; the weights are generated.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from ci.bench.engine.engine_check import STEPS, compared, errors, our_logits, prefill_speed
from ci.bench.engine.low_bit_weights import RUN, LowBitWeights
from ci.bench.engine.weights import BlockWeights, config_of
from ci.bench.front import Outcome, names
from ci.bench.markdown import grid, page
from engine.backends.load import load_on_gpu

ALLOWED: Final = 1.1
LENGTHS: Final = (65, 512, 3000)
PREFILLS: Final = (65, 128, 512, 2048, 8192)
FORMATS: Final = {"16bit": "", "fp8": "-fp8", "w8a8": "-w8a8"}
"""What a bundle's name has for each format."""
LARGEST: Final = 448.0
FLOOR: Final = 1e-10
"""Least magnitude of a block, as in `quantise_rows`."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this case."""
    parser.add_argument("bundles", type=Path)
    parser.add_argument("--models", default="qwen3-0.6b,qwen3-4b,qwen3-8b")
    parser.add_argument("--checked", default="qwen3-0.6b,qwen3-4b", help="models that are compared with transformers")
    parser.add_argument("--max-seq-len", type=int, default=9000)


def measure(options: argparse.Namespace) -> Outcome:
    """Check and time each model."""
    rows: list[dict[str, Any]] = []
    speeds: list[dict[str, Any]] = []
    for name in names(options.models):
        config = config_of(name)
        weights = LowBitWeights(config, "bf16", "fp8")
        prompts = {length: np.random.default_rng(length).integers(0, config.vocab_size, length + STEPS) for length in LENGTHS}
        speed: dict[str, Any] = {"model": name}
        ours: dict[str, dict[int, Any]] = {}
        for weight_format, ending in FORMATS.items():
            given: Any = BlockWeights(config, "bf16") if weight_format == "16bit" else weights
            path = options.bundles / f"{name}{ending}-sm_90a.bundle"
            backend = load_on_gpu(path, config, given, options.max_seq_len, "bf16")
            speed[weight_format] = prefill_speed(backend, config, list(PREFILLS))
            if weight_format != "16bit" and name in names(options.checked):
                ours[weight_format] = {length: our_logits(backend, ids, length) for length, ids in prompts.items()}
            backend.close()
        speeds.append(speed)
        if ours:
            rows += [{"model": name, **row} for row in _errors(config, prompts, ours)]
        print(speeds[-1], rows[-len(LENGTHS) :], flush=True)
    failed = any(not (row["prefill"] <= ALLOWED and _decode(row) <= ALLOWED) for row in rows)
    return Outcome({"errors": rows, "speed": speeds}, {"w8a8_check.md": page(report(rows, speeds))}, int(failed))


def _errors(config: Any, prompts: Mapping[int, Any], ours: Mapping[str, Mapping[int, Any]]) -> Iterable[Any]:
    """Errors for each prompt, of both operands in FP8 and of FP8 weights alone."""
    other: Any = importlib.import_module("ci.bench.engine.transformers_model")

    def quantising(_: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (quantised(other.torch, inputs[0]),)

    with other.transformers_model(config, LowBitWeights(config, "bf16", "fp8"), "f32") as model:
        exact = other.logits(model, config, "f32", prompts)
        for layer in model.model.layers:
            for module in layer.modules():
                if isinstance(module, other.torch.nn.Linear):
                    module.register_forward_pre_hook(quantising)
        theirs = other.logits(model, config, "bf16", prompts)
    for row in compared(ours["w8a8"], theirs, exact):
        length = row["length"]
        yield {**row, "weights_alone": errors(ours["fp8"][length], exact[length].astype(np.float64))[0]}


def quantised(torch: Any, x: Any) -> Any:
    """Activations as their codes and scales give them, in the dtype of the model; (..., K)."""
    blocks = x.float().unflatten(-1, (-1, RUN))
    top = blocks.abs().amax(-1, keepdim=True).clamp_min(FLOOR)
    codes = (blocks * (LARGEST / top)).to(torch.float8_e4m3fn)
    return (codes.float() * (top / LARGEST)).flatten(-2).to(x.dtype)


def _decode(row: Mapping[str, Any]) -> float:
    """The mean error of decode steps over that of transformers."""
    return float(row["decode_mean"] / row["transformers_mean"])


def report(rows: Iterable[Mapping[str, Any]], speeds: Iterable[Mapping[str, Any]]) -> list[str]:
    """The tables: errors, and milliseconds of each format."""
    lines = ["# Prompts with FP8 weights and activations compared with transformers and other formats, random weights", ""]
    steps = f"{STEPS} decode steps, mean: ours, transformers, ratio"
    header = ("model", "prompt", "prefill: ours, transformers, ratio", "FP8 weights alone", steps)
    cells = [
        [
            row["model"], row["length"], f"{row['ours']:.4f}, {row['transformers']:.4f}, {row['prefill']:.2f}",
            f"{row['weights_alone']:.4f}",
            f"{row['decode_mean']:.4f}, {row['transformers_mean']:.4f}, {_decode(row):.2f}",
        ]
        for row in rows
    ]  # fmt: skip
    lines += grid(header, cells)
    for one in speeds:
        keys = [f"prefill_{length}_ms" for length in PREFILLS]
        times = [[key, *(f"{one[weight_format][key]:.2f}" for weight_format in FORMATS)] for key in keys]
        lines += ["", f"## {one['model']}", "", *grid(("", "16 bits", "FP8 weights", "FP8 by FP8"), times)]
    return lines
