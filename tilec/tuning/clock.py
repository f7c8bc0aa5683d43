"""Times launches on a device: alternatives of one problem go in, microseconds of a launch with their spread come out.

Each alternative is captured into a CUDA graph that walks through its argument sets, so that neither gaps between launches nor
the L2 cache flatter it, and the graphs run in turns, so that a drifting clock hits all of them alike.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from tilec.runtime import Driver
from tilec.tuning.records import Time

GRAPH_MICROSECONDS: Final = 2000.0
"""How long one run of a graph takes at least: what an event is off is then below a thousandth."""
ROUNDS: Final = 11
MOST_LAUNCHES: Final = 600
Starts = Callable[[str], None]
"""Called with the name of an alternative that runs for the first time, and with an empty text when all have run."""


class Launchable(Protocol):
    """What is timed: a plan, or what is launched as one is."""

    def launch(self, stream: int) -> object:
        """Enqueue it."""
        ...


def timed(driver: Driver, alternatives: Mapping[str, Sequence[Launchable]], starts: Starts) -> dict[str, Time]:
    """The times of each; its launches are one for an argument set. DriverError where one faults."""
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
                each = once(graph) / len(plans)
            finally:
                driver.destroy_graph(graph)
            wanted = min(MOST_LAUNCHES, math.ceil(GRAPH_MICROSECONDS / max(each, 0.1)))
            count = max(1, round(wanted / len(plans))) * len(plans)
            graphs[name] = _captured(driver, plans, count, stream), count
        starts("")
        samples: dict[str, list[float]] = {name: [] for name in graphs}
        for number in range(ROUNDS + 1):
            for name, (graph, count) in graphs.items():
                taken = once(graph) / count
                if number:  # the first round warms up
                    samples[name].append(taken)
    finally:
        for graph, _ in graphs.values():
            driver.destroy_graph(graph)
        for event in (begin, end):
            driver.destroy_event(event)
        driver.destroy_stream(stream)
    return {name: spread(taken) for name, taken in samples.items()}


def spread(samples: Sequence[float]) -> Time:
    """Median, and the 10th and 90th percentile."""
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
