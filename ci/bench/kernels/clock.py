"""Times alternatives of one problem on the GPU: microseconds per launch, with their spread.

Each alternative is captured into a CUDA graph that steps through its argument sets, so that neither launch gaps nor L2 hits
distort the time, and the graphs are replayed alternately, so that clock drift affects all of them alike.
"""

from __future__ import annotations

import importlib
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

torch: Any = importlib.import_module("torch")

GRAPH_MICROSECONDS: Final = 2500.0
ROUNDS: Final = 21
UNTIMED_ROUNDS: Final = 2
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
    """Time each alternative; its runs are one per argument set. Raises if an alternative cannot be captured. `dry`: only run
    each once."""
    if dry:
        return {name: Timing(1.0, 1.0, 1.0, len([run() for run in runs])) for name, runs in alternatives.items()}
    wanted = min(MOST_LAUNCHES, max(1, math.ceil(GRAPH_MICROSECONDS / max(expected_us, 0.5))))
    counts = {name: max(1, round(wanted / len(runs))) * len(runs) for name, runs in alternatives.items()}
    graphs = {name: _capture(runs, counts[name]) for name, runs in alternatives.items()}
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    for number in range(rounds + UNTIMED_ROUNDS):
        events = {name: _replayed(graph) for name, graph in graphs.items()}
        torch.cuda.synchronize()
        for name, (begin, end) in events.items():
            if number >= UNTIMED_ROUNDS:
                samples[name].append(begin.elapsed_time(end) * 1e3)
    return {name: _summary(samples[name], counts[name]) for name in graphs}


def _replayed(graph: Any) -> tuple[Any, Any]:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    return begin, end


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
