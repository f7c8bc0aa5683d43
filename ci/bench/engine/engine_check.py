"""Compares the engine with transformers on this machine's GPU: same random weights and tokens, both dtypes, and speed.

    python3 ci/bench/engine.py engine_check artifacts/bundles [--models qwen3-0.6b,qwen3-4b] [--lengths 1,17,512,3000]

For each prompt length, the logits of the prompt's last token and of each of 64 teacher-forced decode steps are compared with
transformers in float32; the error may be 1.2 times that of transformers in the same 16-bit dtype. Tokens sampled on the device
are compared with those that the reference samples from the logits. The first prompts of the process are those whose lengths are
timed, so that each is the first of its length. Then tokens per second of decode and the time of prefill,
compared with transformers, whose greedy decode uses a static cache (and torch.compile with `--reference compiled`, which takes
more than half a minute per model). Exit status 1 if an error is too large or a sampled token differs. Needs torch, transformers
and cuda-bindings; the weights are generated.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from ci.bench.engine.weights import BlockWeights, config_of, prompt_of
from ci.bench.front import Outcome, names
from ci.bench.markdown import grid, page
from engine.backends.cuda import CudaBackend
from engine.backends.load import load_on_gpu
from engine.models.config import ModelConfig
from engine.sampling import SamplingParams, sample_logits

STEPS: Final = 64
DECODED: Final = 18
"""Prompt tokens for the decode comparison with transformers."""

RATIO: Final = f"decode_at_{DECODED}_over_transformers"
ALLOWED: Final = 1.2


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this case."""
    parser.add_argument("bundles", type=Path)
    parser.add_argument("--models", default="qwen3-0.6b,qwen3-4b,qwen3-8b")
    parser.add_argument("--lengths", default="1,17,512,3000")
    parser.add_argument("--max-seq-len", type=int, default=10240)
    parser.add_argument("--prefills", default="18,512,2048,8192", help="prompt lengths to time")
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "f16"))
    parser.add_argument("--reference", default="eager", choices=("eager", "compiled"), help="how transformers decodes")
    parser.add_argument("--skip-check", action="store_true", help="only the engine, without transformers")


def measure(options: argparse.Namespace) -> Outcome:
    """Check and time each model."""
    lengths, prefills = ([int(text) for text in names(words)] for words in (options.lengths, options.prefills))
    rows: list[dict[str, Any]] = []
    speeds: list[dict[str, Any]] = []
    wrong = 0
    for name in names(options.models):
        config = config_of(name)
        weights = BlockWeights(config, options.dtype)
        prompts = {length: np.random.default_rng(length).integers(0, config.vocab_size, length + STEPS) for length in lengths}
        began = time.perf_counter()
        path = options.bundles / f"{name}-sm_90a.bundle"
        backend = load_on_gpu(path, config, weights, options.max_seq_len, options.dtype)
        loaded = time.perf_counter() - began
        firsts = {f"first_prefill_{length}_ms": prefill_ms(backend, prompt_of(length, config)) for length in prefills}
        ours = {} if options.skip_check else {length: our_logits(backend, ids, length) for length, ids in prompts.items()}
        wrong += drawn_wrong(backend, config)
        speed = {"model": name, "load_s": loaded, **decode_speed(backend, config)}
        speed |= prefill_speed(backend, config, prefills) | firsts
        backend.close()
        if not options.skip_check:
            other: Any = importlib.import_module("ci.bench.engine.transformers_model")
            with other.transformers_model(config, weights, options.dtype) as model:
                speed |= other.speed(model, config, prefills, DECODED, options.reference)
                theirs = speed[f"transformers_{options.reference}_decode_at_{DECODED}_tok_s"]
                speed[RATIO] = speed[f"decode_at_{DECODED}_tok_s"] / theirs
                theirs, exact = (other.logits(model, config, dtype, prompts) for dtype in (options.dtype, "f32"))
            rows += [{"model": name, "dtype": options.dtype, **row} for row in compared(ours, theirs, exact)]
        speeds.append(speed)
        print(speed, flush=True)
    return outcome(rows, speeds, wrong, options.name)


def our_logits(backend: CudaBackend, ids: Any, length: int) -> Any:
    """Logits after the prompt and after each further token, (STEPS + 1, vocab)."""
    sequence = backend.begin()
    found = [backend.prompt_logits(sequence, [int(i) for i in ids[:length]])]
    found += [backend.decode_logits(sequence, int(token)) for token in ids[length:]]
    return np.stack(found)


def drawn_wrong(backend: CudaBackend, config: ModelConfig) -> int:
    """Number of sampled tokens that differ from those that the reference samples from the same steps' logits."""
    wrong, ids = 0, [int(i) for i in np.random.default_rng(5).integers(0, config.vocab_size, 33)]
    # 19.4 of 20 equal tokens: repeated random weights give tokens the same logit, and 0.95 would cut exactly between two.
    for temperature, top_k, top_p in ((0.6, 20, 0.97), (1.5, 64, 1.0), (0.01, 1, 0.1)):
        params = SamplingParams(temperature, top_k, top_p, seed=11)
        sequence = backend.begin()
        backend.prefill(sequence, ids, params)
        first = backend.token()
        drawn = [first, *backend.stream_tokens(sequence, first, STEPS - 1)]
        sequence = backend.begin()
        logits = backend.prompt_logits(sequence, ids)
        for number, token in enumerate(drawn):
            wrong += token != sample_logits(logits, params, number)
            logits = backend.decode_logits(sequence, token)
    return wrong


def decode_speed(backend: CudaBackend, config: ModelConfig) -> dict[str, float]:
    """Tokens per second at batch 1 after prompts of several lengths, greedy and sampled; medians."""
    found: dict[str, float] = {}
    for length in (18, 512, 2048):
        for mode, sampling in (("decode", None), ("sampled", SamplingParams(0.6, 20, 0.95))):
            if mode == "sampled" and length > 18:
                continue
            sequence = backend.begin()
            backend.prefill(sequence, prompt_of(length, config), sampling)
            token = backend.token()
            rates: list[float] = []
            for _ in range(4):
                sequence.length = length
                began = time.perf_counter()
                count = sum(1 for _ in backend.stream_tokens(sequence, token, 128))
                rates.append(count / (time.perf_counter() - began))
            found[f"{mode}_at_{length}_tok_s"] = sorted(rates[1:])[1]
    return found


def prefill_speed(backend: CudaBackend, config: ModelConfig, lengths: list[int]) -> dict[str, float]:
    """Milliseconds of prompts: first run of a length here, and median of further runs."""
    found: dict[str, float] = {}
    for length in lengths:
        times = [prefill_ms(backend, prompt_of(length, config)) for _ in range(6)]
        found[f"first_prefill_{length}_ms"], found[f"prefill_{length}_ms"] = times[0], sorted(times[1:])[2]
    return found


def prefill_ms(backend: CudaBackend, ids: list[int]) -> float:
    """Milliseconds from token ids on the host to the next token there."""
    sequence = backend.begin()
    began = time.perf_counter()
    backend.prefill(sequence, ids)
    backend.token()
    return (time.perf_counter() - began) * 1e3


def compared(ours: Mapping[int, Any], theirs: Mapping[int, Any], exact: Mapping[int, Any]) -> Iterable[dict[str, Any]]:
    """Errors of our logits and of transformers' in the same dtype, against float32, for each prompt length."""
    for length, truth in exact.items():
        own, other = errors(ours[length], truth.astype(np.float64)), errors(theirs[length], truth.astype(np.float64))
        yield {
            "length": length, "prefill": own[0] / other[0], "ours": own[0], "transformers": other[0],
            "decode_worst": max(own[1:]), "transformers_worst": max(other[1:]),
            "decode_mean": sum(own[1:]) / STEPS, "transformers_mean": sum(other[1:]) / STEPS,
        }  # fmt: skip


def errors(found: Any, exact: Any) -> list[float]:
    """Relative error of each row in the Euclidean norm."""
    rows: Any = np.linalg.norm(found - exact, axis=1) / np.linalg.norm(exact, axis=1)
    return [float(row) for row in rows]


def too_large(rows: Iterable[Mapping[str, Any]], allowed: float) -> bool:
    """Whether an error of a prompt, or the mean one of decode steps, is more than `allowed` times that of transformers."""
    return any(not (row["prefill"] <= allowed and _decode(row) <= allowed) for row in rows)


def error_table(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The errors of each model and prompt length."""
    header = (
        "model", "prompt", "prefill: ours, transformers, ratio", f"{STEPS} decode steps, mean: ours, transformers, ratio",
    )  # fmt: skip
    cells = [
        [
            " ".join(filter(None, (row["model"], row.get("dtype")))), row["length"],
            f"{row['ours']:.4f}, {row['transformers']:.4f}, {row['prefill']:.2f}",
            f"{row['decode_mean']:.4f}, {row['transformers_mean']:.4f}, {_decode(row):.2f}",
        ]
        for row in rows
    ]  # fmt: skip
    return grid(header, cells)


def _decode(row: Mapping[str, Any]) -> float:
    """The mean error of decode steps over that of transformers."""
    return float(row["decode_mean"] / row["transformers_mean"])


def outcome(rows: list[dict[str, Any]], speeds: list[dict[str, Any]], wrong: int, name: str) -> Outcome:
    """The result and its tables."""
    failed = wrong > 0 or too_large(rows, ALLOWED)
    lines = ["# The engine compared with transformers, random weights", "", *error_table(rows)]
    lines += ["", f"Tokens drawn on the device that differ from the reference: {wrong} of {3 * STEPS * len(speeds)}.", ""]
    keys = list(speeds[0])[1:]
    times = [[key, *(f"{speed[key]:.{2 if key == RATIO else 1}f}" for speed in speeds)] for key in keys]
    lines += grid(["", *(speed["model"] for speed in speeds)], times)
    return Outcome({"errors": rows, "drawn_wrong": wrong, "speed": speeds}, {f"{name}.md": page(lines)}, int(failed))
