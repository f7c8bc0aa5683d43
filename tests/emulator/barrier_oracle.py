"""Which barriers of a launch order any accesses, by definition: an oracle that shares no code with the race detector.

In: a launch. Out: for each executed line with a `bar.sync`, whether without that line two threads would access the same bytes,
one of them writing, with no barrier in between. Every plain access of the launch is recorded, with its interval between two
barriers of its block; removing a line joins the intervals before and after its barriers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tilec.emulator.errors import Report
from tilec.emulator.machine import registry
from tilec.emulator.machine.sources import Step
from tilec.emulator.ordering.clocks import Clocks
from tilec.emulator.ordering.races import Shadow


@dataclass
class Trace:
    """Accesses as (granules, lanes, is write) by block and interval, and the line of the barrier after each interval."""

    line: int = 0
    stretch: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    ends: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    accesses: dict[tuple[int, int], list[tuple[Any, Any, bool]]] = field(default_factory=lambda: defaultdict(list))

    def access(self, shadow: Shadow, index: Any, width: int, lanes: Any, is_write: bool) -> None:
        wave = shadow.clocks.wave
        granules = shadow.granules(index, width)
        blocks = wave.block_number[wave.block[lanes]]
        for block in np.unique(blocks).tolist():
            of_block = blocks == block
            self.accesses[block, self.stretch[block]].append((granules[of_block], lanes[of_block], is_write))

    def barrier(self, numbers: list[int]) -> None:
        for block in numbers:
            self.ends[block].append(self.line)
            self.stretch[block] += 1

    def needed(self, line: int) -> bool:
        """Whether accesses before and after the line's barriers conflict."""
        for block, ends in self.ends.items():
            group = [0]
            for number, end in enumerate(ends):
                if end != line:
                    if self._conflict(block, group):
                        return True
                    group = []
                group.append(number + 1)
            if self._conflict(block, group):
                return True
        return False

    def _conflict(self, block: int, stretches: list[int]) -> bool:
        """Whether two lanes access one granule in different ones of these intervals, and one of them writes."""
        if len(stretches) < 2:
            return False
        rows: list[Any] = []
        for stretch in stretches:
            for granules, lanes, is_write in self.accesses.get((block, stretch), ()):
                each = np.repeat(lanes, granules.shape[1])
                columns = granules.reshape(-1), each, np.full(len(each), stretch), np.full(len(each), is_write)
                rows.append(np.stack(columns, axis=1))
        if not rows:
            return False
        events = np.unique(np.concatenate(rows), axis=0)
        starts = np.flatnonzero(np.diff(events[:, 0], prepend=-1))
        low, high = np.minimum.reduceat(events, starts), np.maximum.reduceat(events, starts)
        suspects = (low[:, 1] < high[:, 1]) & (low[:, 2] < high[:, 2]) & (high[:, 3] == 1)
        ends = np.append(starts[1:], len(events))
        for at in np.flatnonzero(suspects):
            found = events[starts[at] : ends[at]]
            writes = found[found[:, 3] == 1]
            different = (writes[:, None, 1] != found[None, :, 1]) & (writes[:, None, 2] != found[None, :, 2])
            if different.any():
                return True
        return False


@contextmanager
def _recording(trace: Trace) -> Iterator[None]:
    read, write, barrier = Shadow.read, Shadow.write, Clocks.block_barrier
    table = registry._REGISTRY  # pyright: ignore[reportPrivateUsage]
    entry = table["bar"]

    def read_too(self: Shadow, index: Any, width: int, lanes: Any, atomic: bool = False, *more: Any) -> Any:
        if not atomic:
            trace.access(self, index, width, lanes, False)
        return read(self, index, width, lanes, atomic, *more)

    def write_too(self: Shadow, index: Any, width: int, lanes: Any, atomic: bool = False, *more: Any) -> Any:
        if not atomic:
            trace.access(self, index, width, lanes, True)
        return write(self, index, width, lanes, atomic, *more)

    def barrier_too(self: Clocks, blocks: Any) -> None:
        trace.barrier(self.wave.block_number[blocks].tolist())
        barrier(self, blocks)

    def decode(d: registry.Decoder) -> Step:
        step, line = entry.decode(d), d.instruction.line

        def marked(frame: Any) -> Any:
            trace.line = line
            return step(frame)

        return marked

    Shadow.read, Shadow.write, Clocks.block_barrier = read_too, write_too, barrier_too  # type: ignore[method-assign]
    table["bar"] = replace(entry, decode=decode)
    try:
        yield
    finally:
        Shadow.read, Shadow.write, Clocks.block_barrier = read, write, barrier  # type: ignore[method-assign]
        table["bar"] = entry


def barriers(launch: Callable[[], Report]) -> tuple[Report, dict[int, bool]]:
    """The launch's report, and for each executed line with a barrier whether it orders any accesses."""
    trace = Trace()
    with _recording(trace):
        report = launch()
    lines = sorted({line for ends in trace.ends.values() for line in ends})
    return report, {line: trace.needed(line) for line in lines}


def without(text: str, line: int) -> str:
    """PTX without one line's instruction."""
    lines = text.split("\n")
    return "\n".join([*lines[: line - 1], f"// {lines[line - 1].strip()}", *lines[line:]])
