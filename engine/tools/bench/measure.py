"""Runs and times the cells of a policy on a backend.

A run reads the clock three times: before prefill, when the first token is on the host, and when the last one is. Nothing is
printed in between. Stop tokens are ignored, so that every generation has its full length.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from engine.backends import Backend
from engine.batch import Batch
from engine.errors import DeviceError
from engine.graph.traffic import Contracts, streamed
from engine.tools.bench.policy import Cell, Policy
from engine.tools.bench.result import CellResult, Statistic
from tilec.step.graph import StepGraph

Clock = Callable[[], float]
"""Seconds since an arbitrary origin."""

HOST_CLOCK: Final[Clock] = time.perf_counter


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds until the first and until the last token of one run, and its tokens."""

    prefill_seconds: float
    seconds: float
    tokens: tuple[int, ...]


@dataclass(slots=True)
class _Samples:
    prefill: list[float] = field(default_factory=list[float])
    total: list[float] = field(default_factory=list[float])
    generations: set[tuple[int, ...]] = field(default_factory=set[tuple[int, ...]])


def generation(backend: Backend, ids: Sequence[int], tg: int, clock: Clock = HOST_CLOCK) -> Run:
    """Generate `tg` tokens greedily; DeviceError if the backend returns another number of tokens."""
    sequence = backend.begin()
    start = clock()
    backend.prefill(sequence, ids)
    token = backend.token()
    first = clock()
    tokens = [token, *backend.stream_tokens(sequence, token, tg - 1)]
    ended = clock()
    if len(tokens) != tg:
        raise DeviceError(f"the backend gave {len(tokens)} tokens where {tg} were asked for")
    return Run(first - start, ended - start, tuple(tokens))


def generations(batch: Batch, prompts: Sequence[Sequence[int]], tg: int, clock: Clock = HOST_CLOCK) -> Run:
    """Generate `tg` tokens greedily for all prompts as a batch; `tokens` lists those of the first prompt, then of the
    second."""
    start = clock()
    first_tokens = dict(batch.add(ids) for ids in prompts)
    first = clock()
    tokens = {row: [token] for row, token in first_tokens.items()}
    for remaining in range(tg - 1, 0, -1):
        for row, token in batch.step(ahead=remaining > 1).items():
            tokens[row].append(token)
    ended = clock()
    for row in first_tokens:
        batch.remove(row)
    return Run(first - start, ended - start, tuple(token for row_tokens in tokens.values() for token in row_tokens))


def measure(
    backend: Backend,
    policy: Policy,
    *,
    clock: Clock = HOST_CLOCK,
    bandwidth: Callable[[], float] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[tuple[CellResult, ...], Statistic | None]:
    """Measure every cell of `policy`; also returns the samples of `bandwidth` (bytes per second, one per repetition, before the
    cells). `progress` is called between runs with what comes next."""
    cells = policy.cells()
    vocab_size, batched = backend.config.vocab_size, policy.batch > 1
    prompts = {cell.pp: [policy.prompt(cell.pp, vocab_size, number) for number in range(policy.batch)] for cell in cells}
    batch = Batch(backend, policy.batch) if batched else None
    samples = {cell: _Samples() for cell in cells}
    speeds: list[float] = []
    for rep in range(-policy.warmup_reps, policy.reps):
        label = f"repetition {rep + 1} of {policy.reps}" if rep >= 0 else "warm-up"
        if bandwidth is not None:
            progress(f"{label}: bandwidth")
            speed = bandwidth()
            if rep >= 0:
                speeds.append(speed)
        for cell in cells:
            progress(f"{label}: pp {cell.pp}, tg {cell.tg}")
            if batch is not None:
                run = generations(batch, prompts[cell.pp], cell.tg, clock)
            else:
                run = generation(backend, prompts[cell.pp][0], cell.tg, clock)
            if rep >= 0:
                samples[cell].prefill.append(run.prefill_seconds)
                samples[cell].total.append(run.seconds)
                samples[cell].generations.add(run.tokens)
    results: list[CellResult] = []
    for cell in cells:
        cell_samples = samples[cell]
        total, prefill = Statistic(tuple(cell_samples.total)), Statistic(tuple(cell_samples.prefill))
        graph = backend.step.graph("batch", tokens=policy.batch) if batched else backend.step.graph("decode")
        size = step_bytes(graph, cell, backend.contract)
        results.append(CellResult(cell.pp, cell.tg, size, total, prefill, len(cell_samples.generations) == 1, policy.batch))
    if batch is not None:
        batch.close()
    return tuple(results), Statistic(tuple(speeds)) if speeds else None


def step_bytes(graph: StepGraph, cell: Cell, contracts: Contracts) -> float:
    """Bytes that the decode step `graph` must read and write in a cell, as the mean over its `tg - 1` steps: the weights, and
    the filled slots of the cache, from `pp + 1` to `pp + tg - 1`. They grow linearly, so the mean is that of the first and last
    step."""
    ends = (graph.sequences * filled for filled in (cell.pp + 1, cell.pp + cell.tg - 1))
    first, last = (sum(streamed(graph, filled, contracts)) for filled in ends)
    return (first + last) / 2
