"""Long-running tests of the engine: no leak, no drift.

    python3 ci/bench/engine.py engine_soak artifacts/bundles [--model qwen3-0.6b] [--steps 10000] [--cycles 40] [--long 40960]

Three checks with random weights. (1) `--steps` sampled decode steps as a CUDA graph that is captured again every 1000 steps,
and the same steps launched from the host without a graph: all tokens must be equal, and the final logits bitwise. (2) A cache
of `--long` tokens: a prompt that fills all but 64 slots, decode to the last slot, one more step refused; the logits after the
prompt are compared with those of the prompt without its last token plus one decode step. (3) `--cycles` times load, one prompt,
four tokens, close. Nothing may be kept that was not there before: memory, modules, graphs, streams and events are counted
where the driver gives them (`ci.bench.engine.ledger`), so other processes change no verdict. The card's free memory, which they
change, is a figure, as are seconds. Exit status 1 if a check fails; 3, without a verdict, if others hold the memory that the
model needs.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from ci.bench.engine.ledger import Ledger, refuse_shared_card
from ci.bench.engine.weights import BlockWeights, config_of
from ci.bench.front import Outcome
from ci.bench.markdown import grid, page
from engine.backends.cuda import CudaBackend
from engine.backends.upload import WeightSource
from engine.errors import DeviceError, UsageError
from engine.models.config import ModelConfig
from engine.sampling import SamplingParams
from tilec.runtime import Bundle, Device, open_bundle

CHECKS: Final = ("drift", "long", "cycles")
RECAPTURE: Final = 1000
Kept = Callable[[], Mapping[str, int]]
"""Counts of what this process holds of the card; equal ones are equal."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this case."""
    parser.add_argument("bundles", type=Path)
    parser.add_argument("--model", default="qwen3-0.6b")
    parser.add_argument("--steps", type=int, default=10000)
    parser.add_argument("--cycles", type=int, default=40)
    parser.add_argument("--long", type=int, default=40960)


def measure(options: argparse.Namespace) -> Outcome:
    """Run the three checks."""
    config = config_of(options.model)
    weights = BlockWeights(config, "bf16")
    path = options.bundles / f"{options.model}-sm_90a.bundle"
    record: dict[str, Any] = {"model": options.model}
    ledger = Ledger()
    backend = loaded(open_bundle(path), ledger.device(), config, weights, options.long)
    record["drift"] = drift(backend, config, options.steps, ledger.kept)
    record["long"] = long_context(backend, config, options.long, ledger.kept)
    backend.close()
    record["cycles"] = cycles(path, config, weights, options.cycles, ledger.device, ledger.kept)
    failed = not all(record[name]["ok"] for name in CHECKS)
    return Outcome(record, {"engine_soak.md": page(report(record))}, int(failed))


def loaded(bundle: Bundle, device: Device, config: ModelConfig, weights: WeightSource, slots: int) -> CudaBackend:
    """A backend with the model. Unfinished if too little memory is free, although this process holds none."""
    backend = CudaBackend(bundle, device)
    try:
        backend.load(config, weights, slots)
    except DeviceError as error:
        refuse_shared_card(str(error))
        raise
    return backend


def drift(backend: CudaBackend, config: ModelConfig, steps: int, kept: Kept, recapture: int = RECAPTURE) -> dict[str, Any]:
    """The same steps with and without a graph; tokens are sampled, so that they do not settle into a loop."""
    ids = [int(i) for i in np.random.default_rng(1).integers(0, config.vocab_size, 100)]
    sampling = SamplingParams(temperature=1.0, top_k=64)
    sequence = backend.begin()
    backend.prefill(sequence, ids, sampling)
    first = backend.token()
    backend.forget_steps()
    captured, free, looks = [first], list[int](), list[Mapping[str, int]]()
    began = time.perf_counter()
    while len(captured) <= steps:
        captured += backend.stream_tokens(sequence, captured[-1], min(recapture, steps + 1 - len(captured)))
        backend.forget_steps()
        free.append(backend.driver.memory()[0])
        looks.append(kept())
    took = time.perf_counter() - began
    ends = backend.decode_logits(sequence, captured[-1])
    sequence = backend.begin()
    backend.prefill(sequence, ids, sampling)
    eager = [backend.token()]
    while len(eager) <= steps:
        eager.append(backend.run_uncaptured(sequence, eager[-1]))
    differing = sum(a != b for a, b in zip(captured, eager, strict=True))
    same = bool((backend.decode_logits(sequence, eager[-1]) == ends).all())
    return {
        "steps": steps, "captures": len(free), "tokens_per_second": steps / took, "differing_tokens": differing,
        "logits_equal": same, "distinct_tokens": len(set(captured)), "kept_more": more(looks[0], looks[-1]),
        "free_bytes_spread": max(free) - min(free), "ok": differing == 0 and same and all(one == looks[0] for one in looks),
    }  # fmt: skip


def more(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """What is held after that was not held before, by the call that gave it."""
    return {name: count for name in {**before, **after} if (count := after.get(name, 0) - before.get(name, 0))}


def long_context(backend: CudaBackend, config: ModelConfig, slots: int, kept: Kept) -> dict[str, Any]:
    """A prompt that nearly fills the cache, then decode to the last slot."""
    ids = [int(i) for i in np.random.default_rng(2).integers(0, config.vocab_size, slots - 64)]
    sequence = backend.begin()
    backend.forget_steps()  # graphs are captured when they are first needed, and kept
    before, free_before = kept(), backend.driver.memory()[0]
    began = time.perf_counter()
    full = backend.prompt_logits(sequence, ids)
    took = time.perf_counter() - began
    sequence = backend.begin()
    backend.prompt_logits(sequence, ids[:-1])
    split = backend.decode_logits(sequence, ids[-1])
    error = float(np.linalg.norm(full - split) / np.linalg.norm(full))
    sequence = backend.begin()
    backend.prefill(sequence, ids)
    token = backend.token()
    began = time.perf_counter()
    given = sum(1 for _ in backend.stream_tokens(sequence, token, 64))
    rate = given / (time.perf_counter() - began)
    try:
        backend.decode(sequence, token)
        refused = False
    except UsageError:
        refused = True
    backend.forget_steps()
    after = kept()
    return {
        "prompt": len(ids), "prefill_seconds": took, "prefill_against_decode": error, "decode_tokens_per_second": rate,
        "one_more_refused": refused, "kept_more": more(before, after),
        "free_bytes_lost": free_before - backend.driver.memory()[0],
        "ok": given == 64 and refused and error < 0.05 and after == before,
    }  # fmt: skip


def cycles(
    path: Path, config: ModelConfig, weights: WeightSource, count: int, device: Callable[[], Device], kept: Kept
) -> dict[str, Any]:  # fmt: skip
    """Load, generate and close repeatedly, until something is held that was not held before."""
    free, resident, tokens, seconds = list[int](), list[int](), set[tuple[int, ...]](), list[float]()
    before = after = kept()
    while len(seconds) < count and after == before:
        began = time.perf_counter()
        bundle = open_bundle(path)
        backend = loaded(bundle, device(), config, weights, 512)
        sequence = backend.begin()
        backend.prefill(sequence, [5, 6, 7])
        token = backend.token()
        tokens.add((token, *backend.stream_tokens(sequence, token, 4)))
        driver = backend.driver
        backend.close()
        bundle.close()
        seconds.append(time.perf_counter() - began)
        after = kept()
        free.append(driver.memory()[0])
        resident.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    settled = free[2:] or free
    return {
        "cycles": len(seconds), "median_seconds": sorted(seconds)[len(seconds) // 2], "distinct_answers": len(tokens),
        "kept_more": more(before, after), "free_bytes_lost": settled[0] - settled[-1],
        "host_kb_grown": resident[-1] - resident[len(resident) // 2], "ok": len(tokens) == 1 and after == before,
    }  # fmt: skip


def report(record: Mapping[str, Any]) -> list[str]:
    """The tables, one of each check."""
    lines = [f"# The engine, long and often: {record['model']}"]
    for name in CHECKS:
        rows = [(key, f"{value:.4g}" if isinstance(value, float) else _shown(value)) for key, value in record[name].items()]
        lines += ["", *grid((name, ""), rows)]
    lines += [
        "",
        "`kept_more` is checked: what this process holds of the card and did not hold before. Seconds, rates and free",
    ]
    return [*lines, "bytes of the card are figures, which other processes change."]


def _shown(value: Any) -> Any:
    """Counts by name as text, another value as it is."""
    if not isinstance(value, dict):
        return value
    counts = cast(dict[str, int], value)
    return ", ".join(f"{name} {count:+}" for name, count in counts.items()) or "nothing"
