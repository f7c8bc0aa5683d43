"""The time of a prompt over its length, of every dense Qwen3 on this machine's GPU: no cliffs, and no dear first prompts.

    python3 ci/bench/engine.py lengths artifacts/bundles [--models qwen3-4b,qwen3-0.6b] [--budget 540]

A prompt's time is that from token ids on the host to the next token there. For each length the time of the first prompt, before
which no prompt of that length ran in this process, then the median of five more, or of three above 2048 tokens. Lengths come
in a random order, the same for every model, so that heat and earlier lengths look like neither a slope nor a cliff. No prompt
is run before the first length, so that the first minute of a process counts. Weights are random, in bf16.

Three goals (`lengths_report.py`) are figures, not conditions: the exit status does not depend on them. Models are measured in
the order of `--models`. Once the budget is spent, no length is begun. What was measured until then is written, and the exit
status is 3. Needs cuda-bindings. The picture needs matplotlib too; `python ci/figures.py --write` draws it where that is.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from ci.bench.engine.lengths_plot import drawing
from ci.bench.engine.lengths_report import table
from ci.bench.engine.weights import BlockWeights, config_of, prompt_of
from ci.bench.front import Outcome, Unfinished, names
from engine.backends.cuda import CudaBackend
from engine.backends.load import load_on_gpu
from engine.models.config import ModelConfig

MODELS: Final = "qwen3-4b,qwen3-0.6b,qwen3-8b,qwen3-32b,qwen3-1.7b,qwen3-14b"
"""The order of worth, for a budget that does not suffice for all."""
LENGTHS: Final = (
    1, 2, 15, 16, 17, 18, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 129, 192, 255, 256, 257, 320, 383, 384, 385, 401, 448, 511,
    512, 513, 640, 768, 769, 896, 900, 1000, 1023, 1024, 1025, 1152, 1279, 1281, 1408, 1535, 1537, 1664, 1791, 1793, 1920, 2000,
    2047, 2048, 2049, 2560, 3000, 3073, 4095, 4096, 4097, 5000, 6144, 6145, 8191, 8192, 8193,
)  # fmt: skip
"""Both sides of where the form, the tile or the number of chunks may change, and what is between."""
LONG: Final = 2048
"""Tokens above which three prompts follow the first, else five."""
SLOTS: Final = 10240
DTYPE: Final = "bf16"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this case."""
    parser.add_argument("bundles", type=Path)
    parser.add_argument("--models", default=MODELS, help="in this order")


def measure(options: argparse.Namespace) -> Iterator[Outcome]:
    """Time each model; an outcome after each, with all before it. Unfinished if the budget ended before the last length."""
    ends = None if options.budget is None else time.monotonic() + options.budget
    found: list[dict[str, Any]] = []
    chosen = names(options.models)
    for name in chosen:
        if _is_over(ends):
            break
        config = config_of(name)
        began = time.perf_counter()
        backend = load_on_gpu(options.bundles / f"{name}-sm_90a.bundle", config, BlockWeights(config, DTYPE), SLOTS, DTYPE)
        loaded = time.perf_counter() - began
        try:
            rows = timed(backend, config, LENGTHS, lambda: _is_over(ends))
            found.append({"model": name, "load_s": loaded, "chunk": backend.chunk_tokens, "rows": rows})
        finally:
            backend.close()
        print(f"{name}: {len(rows)} of {len(LENGTHS)} lengths, loaded in {loaded:.1f} s", flush=True)
        yield outcome(found, options.name)
    done = sum(len(model["rows"]) for model in found)
    if done < len(LENGTHS) * len(chosen):
        raise Unfinished(f"{done} of {len(LENGTHS) * len(chosen)} lengths of all models were timed")


def _is_over(ends: float | None) -> bool:
    return ends is not None and time.monotonic() >= ends


def timed(
    backend: CudaBackend, config: ModelConfig, lengths: Sequence[int], is_over: Callable[[], bool]
) -> list[dict[str, Any]]:
    """Milliseconds of each length in ascending order, of those that were begun before `is_over`: `first`, `second`, and
    `median` of all after the first."""
    order, rows = list(lengths), list[dict[str, Any]]()
    random.Random(0).shuffle(order)
    for length in order:
        if is_over():
            break
        ids = prompt_of(length, config)
        first, *others = (milliseconds(backend, ids) for _ in range(4 if length > LONG else 6))
        rows.append({"tokens": length, "first": first, "second": others[0], "median": statistics.median(others)})
    return sorted(rows, key=lambda row: row["tokens"])


def milliseconds(backend: CudaBackend, ids: list[int]) -> float:
    """Of one prompt, to the next token on the host."""
    sequence = backend.begin()
    began = time.perf_counter()
    backend.prefill(sequence, ids)
    backend.token()
    return (time.perf_counter() - began) * 1e3


def outcome(models: Sequence[dict[str, Any]], name: str) -> Outcome:
    """The result, its tables and its picture."""
    data = {"models": list(models)}
    pages = {f"{name}.md": table(data)}
    if importlib.util.find_spec("matplotlib") is not None:
        pages[f"{name}.svg"] = drawing(data)
    return Outcome(data, pages)
