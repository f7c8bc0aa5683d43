"""Compares batches with single sequences on this machine's GPU, with random weights, and times them.

    python3 ci/bench/engine.py batch_check artifacts/bundles [--models qwen3-0.6b,qwen3-4b] [--max-seq-len 9000]

For 2, 4 and 8 sequences of different lengths, the logits of 16 teacher-forced steps are compared with those of each sequence
alone at batch size 1; each row must be bitwise independent of the sequences in all other rows. Then total tokens per second
after prompts of several lengths, for 1 to 8 sequences, and a profile of a step of eight. Exit status 1 if logits differ by more
than `MAX_DISTANCE`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from ci.bench.engine.weights import BlockWeights, config_of, prompt_of
from ci.bench.front import Outcome, names
from ci.bench.markdown import grid, page
from engine.backends.cuda import CapturedStep, CudaBackend
from engine.backends.load import load_on_gpu
from engine.batch import Batch
from engine.sampling import SamplingParams

STEPS: Final = 16
LENGTHS: Final = (18, 333, 1, 90, 1500, 7, 64, 129)
"""Prompt lengths in tokens, one per sequence."""
SPEEDS: Final = (18, 512, 2048, 8192)
MAX_DISTANCE: Final = 0.03
"""Maximum relative distance of bf16 logits between batch and single steps, in the Euclidean norm."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this case."""
    parser.add_argument("bundles", type=Path)
    parser.add_argument("--models", default="qwen3-0.6b,qwen3-4b")
    parser.add_argument("--max-seq-len", type=int, default=9000)


def measure(options: argparse.Namespace) -> Outcome:
    """Check and time each model."""
    found: dict[str, Any] = {}
    failed = False
    for name in names(options.models):
        config = config_of(name)
        path = options.bundles / f"{name}-sm_90a.bundle"
        backend = load_on_gpu(path, config, BlockWeights(config, "bf16"), options.max_seq_len, "bf16")
        record: dict[str, Any] = {"far": {}, "independent": {}, "drawn": drawn_alike(backend, config), "tok_s": {}}
        for sequences in (2, 4, 8):
            distance, independent = compared_with_single(backend, config, sequences)
            record["far"][sequences], record["independent"][sequences] = distance, independent
            failed |= not (distance <= MAX_DISTANCE and independent)
        for length in (one for one in SPEEDS if one + 200 < options.max_seq_len):
            record["tok_s"][length] = {1: single_speed(backend, config, length)}
            record["tok_s"][length] |= {many: batch_speed(backend, config, length, many) for many in (2, 4, 8)}
        record["us"] = time_by_kind(backend, config)
        failed |= not record["drawn"]
        found[name] = record
        print(name, json.dumps(record), flush=True)
        backend.close()
    return Outcome(found, {"batch_check.md": page(report(found))}, int(failed))


def forced(length: int, config: Any) -> list[int]:
    """Teacher-forced tokens after a prompt."""
    return [int(token) for token in np.random.default_rng([length, 1]).integers(0, config.vocab_size, STEPS)]


def compared_with_single(backend: CudaBackend, config: Any, sequences: int) -> tuple[float, bool]:
    """The largest distance of a row's logits from those of its sequence alone, and whether other sequences change no bit."""
    lengths = LENGTHS[:sequences]
    alone: list[Any] = []
    for length in lengths:
        sequence = backend.begin()
        backend.prefill(sequence, prompt_of(length, config))
        alone.append(np.stack([backend.decode_logits(sequence, token) for token in forced(length, config)]))
    with Batch(backend, sequences) as batch:
        together = logits_of(batch, config, lengths)
    distance = max(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in zip(together, alone, strict=True))
    same = True
    with Batch(backend, sequences) as batch:
        others = [prompt_of(length + 40, config) for length in lengths[1:]]
        for ids in others:
            batch.add(ids)
        row, _ = batch.add(prompt_of(lengths[0], config))
        for step, token in enumerate(forced(lengths[0], config)):
            tokens = {other: (step * 7919 + other) % config.vocab_size for other in range(sequences)} | {row: token}
            same &= bool((batch.logits(tokens)[row] == together[0][step]).all())
    return distance, same


def logits_of(batch: Batch, config: Any, lengths: tuple[int, ...]) -> list[Any]:
    """Teacher-forced logits of each sequence, (STEPS, vocab)."""
    batch_rows = [batch.add(prompt_of(length, config))[0] for length in lengths]
    given = {place: forced(length, config) for place, length in zip(batch_rows, lengths, strict=True)}
    rows = [batch.logits({place: given[place][step] for place in batch_rows}) for step in range(STEPS)]
    return [np.stack([row[place] for row in rows]) for place in batch_rows]


def drawn_alike(backend: CudaBackend, config: Any) -> bool:
    """Whether a partly sampled batch generates the same tokens for a sequence as a batch of that sequence and free rows."""
    params = SamplingParams(0.9, 40, 0.95, seed=3)
    generations: list[list[int]] = []
    for others in (0, 5):
        with Batch(backend, 8) as batch:
            for number in range(others):
                batch.add(prompt_of(20 + number, config), params if number % 2 else None)
            row, token = batch.add(prompt_of(33, config), params)
            generations.append([token, *(batch.step()[row] for _ in range(STEPS))])
    return generations[0] == generations[1]


def single_speed(backend: CudaBackend, config: Any, length: int) -> float:
    """Tokens per second of one sequence; median of three runs."""
    sequence = backend.begin()
    backend.prefill(sequence, prompt_of(length, config))
    token, rates = backend.token(), list[float]()
    for _ in range(4):
        sequence.length = length
        began = time.perf_counter()
        count = sum(1 for _ in backend.stream_tokens(sequence, token, 128))
        rates.append(count / (time.perf_counter() - began))
    return sorted(rates[1:])[1]


def batch_speed(backend: CudaBackend, config: Any, length: int, sequences: int) -> float:
    """Total tokens per second of all sequences; median of three runs."""
    rates: list[float] = []
    for _ in range(4):
        with Batch(backend, sequences) as batch:
            for number in range(sequences):
                batch.add([(token + number) % config.vocab_size for token in prompt_of(length, config)])
            batch.step()
            began = time.perf_counter()
            count = sum(len(batch.step(ahead=left > 1)) for left in range(128, 0, -1))
            rates.append(count / (time.perf_counter() - began))
    return sorted(rates[1:])[1]


def time_by_kind(backend: CudaBackend, config: Any) -> dict[str, float]:
    """Microseconds of the launches of each kind in a step of eight sequences at 18 tokens, run in sequence."""
    found: dict[str, float] = {}
    with Batch(backend, 8) as batch:
        for number in range(8):
            batch.add(prompt_of(18 + number % 2, config))
        batch.step(ahead=False)
        steps = batch._steps  # pyright: ignore[reportPrivateUsage]
        step = steps.prepared("argmax", backend.step.decode_variants(20))
        assert isinstance(step, CapturedStep)
        whole = [plan for op, plan in zip(step.graph.ops, step.plans, strict=True) if op.kernel != "advance_rows"]
        found["step"] = 1e6 * backend.time_launches(whole, 20, 18)  # first: launches of a kind need what a step leaves them
        kinds: dict[str, list[Any]] = {}
        for op, plan in zip(step.graph.ops, step.plans, strict=True):
            if op.kernel != "advance_rows":
                kinds.setdefault(op.name.rpartition(".")[2], []).append(plan)
        for kind, plans in kinds.items():
            found[kind] = 1e6 * backend.time_launches(plans, 20, 18)
    return found


def report(found: Mapping[str, Any]) -> list[str]:
    """The tables, one of each model."""
    lines = ["# Batches beside single sequences, random weights"]
    for name, record in found.items():
        rows = [
            [length, *(f"{rates[many]:.0f}" for many in (1, 2, 4, 8)), f"{rates[8] / rates[1]:.2f}"]
            for length, rates in record["tok_s"].items()
        ]
        lines += ["", f"## {name}, tokens a second in all", ""]
        lines += grid(("tokens", "1", "2", "4", "8", "8 over 1"), rows, left=0)
        facts = f"rows independent: {record['independent']}; drawn alike: {record['drawn']}"
        shares = ", ".join(f"{kind} {us:.0f}" for kind, us in record["us"].items())
        lines += ["", f"distance of logits: {record['far']}; {facts}", "", f"us of a step of eight: {shares}"]
    return lines
