"""Times the same launches in short runs on a cool chip and in long runs on a hot one, whose clocks the power limit lowers.

In a short run each alternative computes for a few milliseconds after the chip was idle. In a long one all of them alternate
for seconds. A ratio in one regime does not follow from that in the other: what draws less power keeps its clock.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

COOL, HOT = "cool", "hot"
SHORT_RUNS: Final = 7
IDLE_SECONDS: Final = 0.3
"""Before each short run."""
LONG_ROUNDS: Final = 400
"""Of each alternative's graph (`clock.GRAPH_MICROSECONDS`) in a long run: a second of each."""
Runs = Mapping[str, Sequence[Callable[[], object]]]
Measure = Callable[..., Mapping[str, Any]]
"""As `clock.measure`: timings with a `median`, by alternative."""


def regimes(measure: Measure, runs: Runs, expected_us: float, idle: Callable[[float], object] = time.sleep) -> dict[str, Any]:
    """Microseconds of each alternative, by regime: the median of short runs, in which another one is first each time, and the
    median of a long one."""
    samples: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for number in range(SHORT_RUNS):
        first = number % len(names)
        idle(IDLE_SECONDS)
        found = measure({name: runs[name] for name in names[first:] + names[:first]}, expected_us, rounds=1)
        for name, timing in found.items():
            samples[name].append(timing.median)
    long = measure(runs, expected_us, rounds=LONG_ROUNDS)
    return {
        COOL: {name: statistics.median(values) for name, values in samples.items()},
        HOT: {name: long[name].median for name in names},
    }
