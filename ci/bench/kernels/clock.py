"""Times alternatives of one problem on the GPU: microseconds per launch, with their spread.

Each alternative is captured into a CUDA graph that steps through its argument sets, so that neither launch gaps nor L2 hits
distort the time, and the graphs are replayed alternately, so that clock drift affects all of them alike.
"""

from __future__ import annotations

import importlib
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

torch: Any = importlib.import_module("torch")

GRAPH_MICROSECONDS: Final = 2500.0
ROUNDS: Final = 21
MOST_LAUNCHES: Final = 600
Run = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Microseconds per launch: median, and the 10th and 90th percentile of the rounds."""

    median: float
    low: float
    high: float
    launches: int


def measure(
    alternatives: Mapping[str, Sequence[Run]], expected_us: float, *, dry: bool = False, rounds: int = ROUNDS
) -> dict[str, Timing]:
    """Time each alternative; its runs are one per argument set. Raises if an alternative cannot be captured."""
    graphs: dict[str, tuple[Any, int]] = {}
    for name, runs in alternatives.items():
        wanted = min(MOST_LAUNCHES, max(1, math.ceil(GRAPH_MICROSECONDS / max(expected_us, 0.5))))
        count = max(1, round(wanted / len(runs))) * len(runs)
        graphs[name] = (_DryGraph(runs) if dry else _capture(runs, count), count)
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    for round_number in range(2 if dry else rounds + 2):
        events: dict[str, tuple[Any, Any]] = {}
        for name, (graph, _) in graphs.items():
            if dry:
                begin = time.perf_counter()
                graph.replay()
                samples[name].append((time.perf_counter() - begin) * 1e6)
                continue
            pair = (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            pair[0].record()
            graph.replay()
            pair[1].record()
            events[name] = pair
        if not dry:
            torch.cuda.synchronize()
        for name, (begin_event, end_event) in events.items():
            if round_number >= 2:
                samples[name].append(begin_event.elapsed_time(end_event) * 1e3)
    return {name: _summary(samples[name], graphs[name][1]) for name in graphs}


def _summary(samples: list[float], launches: int) -> Timing:
    ordered = sorted(value / launches for value in samples)
    tenth = len(ordered) // 10
    return Timing(statistics.median(ordered), ordered[tenth], ordered[-1 - tenth], launches)


def _capture(runs: Sequence[Run], count: int) -> Any:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for run in runs[:3]:
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for position in range(count):
            runs[position % len(runs)]()
    return graph


class _DryGraph:
    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs

    def replay(self) -> None:
        for run in self.runs:
            run()
