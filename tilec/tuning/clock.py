"""Times alternatives of one problem on a device. Out: microseconds per launch, with their spread.

Each alternative is captured into a CUDA graph that cycles through its argument sets, which removes gaps between launches and
hits in the L2 cache. The graphs run alternately, so that clock drift affects all of them equally.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from tilec.runtime import Driver
from tilec.tuning.records import Time

GRAPH_MICROSECONDS: Final = 2000.0
"""Least duration of one run of a graph (as far as `MOST_LAUNCHES` allows): the error of an event is then below 0.1 %."""
ROUNDS: Final = 11
MOST_LAUNCHES: Final = 600
Starts = Callable[[str], None]
"""Called with the name of each alternative before its first run, and with an empty string after all have run."""


class Launchable(Protocol):
    """What can be timed: a plan, or an object with the same `launch`."""

    def launch(self, stream: int) -> object:
        """Enqueue one launch on a stream."""
        ...


def timed(driver: Driver, alternatives: Mapping[str, Sequence[Launchable]], starts: Starts) -> dict[str, Time]:
    """The times of each alternative, which has one launchable per argument set. DriverError if a launch faults."""
    stream = driver.create_stream()
    begin, end = driver.create_event(timing=True), driver.create_event(timing=True)
    graphs: dict[str, tuple[Any, int]] = {}
    try:

        def once(graph: Any) -> float:
            driver.record_event(begin, stream)
            driver.launch_graph(graph, stream)
            driver.record_event(end, stream)
            driver.wait_event(end)
            return driver.elapsed(begin, end) * 1000

        for name, plans in alternatives.items():
            starts(name)
            for plan in plans:
                plan.launch(stream)
            driver.synchronize(stream)
            graph = _captured(driver, plans, len(plans), stream)
            try:
                launch_microseconds = once(graph) / len(plans)
            finally:
                driver.destroy_graph(graph)
            wanted = min(MOST_LAUNCHES, math.ceil(GRAPH_MICROSECONDS / max(launch_microseconds, 0.1)))
            count = max(1, round(wanted / len(plans))) * len(plans)
            graphs[name] = _captured(driver, plans, count, stream), count
        starts("")
        samples: dict[str, list[float]] = {name: [] for name in graphs}
        for number in range(ROUNDS + 1):
            for name, (graph, count) in graphs.items():
                microseconds = once(graph) / count
                if number:  # the first round warms up
                    samples[name].append(microseconds)
    finally:
        for graph, _ in graphs.values():
            driver.destroy_graph(graph)
        for event in (begin, end):
            driver.destroy_event(event)
        driver.destroy_stream(stream)
    return {name: spread(microseconds) for name, microseconds in samples.items()}


def spread(samples: Sequence[float]) -> Time:
    """Median, 10th and 90th percentile."""
    ordered = sorted(samples)
    tenth = len(ordered) // 10
    return statistics.median(ordered), ordered[tenth], ordered[-1 - tenth]


def _captured(driver: Driver, plans: Sequence[Launchable], count: int, stream: int) -> Any:
    driver.begin_capture(stream)
    try:
        for number in range(count):
            plans[number % len(plans)].launch(stream)
    finally:
        graph = driver.end_capture(stream)
    return graph
