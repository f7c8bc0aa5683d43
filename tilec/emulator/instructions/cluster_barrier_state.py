"""The barrier of each cluster of a wave: `barrier.cluster`.

PTX ISA, "barrier.cluster": a thread arrives, then waits for all threads of the cluster that have not exited; it may not arrive
twice without a wait between, nor wait without an arrival. An arrival with `.release` (the default) orders the thread's earlier
accesses before those after the wait; a relaxed one orders only what a fence before it published.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.machine.faults import Recorder
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.subsystem import Subsystem
from tilec.emulator.machine.wave import EXITED, Wave
from tilec.emulator.machine.windows import Windows
from tilec.emulator.ordering.barrier_inits import Published
from tilec.emulator.ordering.clocks import Token
from tilec.emulator.ordering.ordering import Ordering
from tilec.emulator.ptx.syntax import Instruction

Index = NDArray[np.int64]


@dataclass(slots=True)
class _Phase:
    """The arrivals of a phase: the token that they released, the mbarriers that they published, and the lanes that wait."""

    token: Token | None = None
    published: Published = field(default_factory=dict[int, int])
    waiting: Index = field(default_factory=lambda: np.zeros(0, np.int64))


class ClusterBarriers(Subsystem):
    """`_arrived` [lanes]: the lane has arrived and not yet waited; `_phases`: the current phase of each cluster; `_last`: the
    last complete one."""

    def __init__(self, wave: Wave, windows: Windows, ordering: Ordering, faults: Recorder) -> None:
        self.wave, self.windows, self.ordering, self.faults = wave, windows, ordering, faults
        self.clear()

    def clear(self) -> None:
        self._arrived: NDArray[np.bool_] = np.zeros(self.wave.lane_count, np.bool_)
        self._counted: NDArray[np.bool_] = np.zeros(self.wave.lane_count, np.bool_)
        self._phases: dict[int, _Phase] = {}
        self._last: dict[int, _Phase] = {}

    def arrive(self, lanes: Index, instruction: Instruction, *, relaxed: bool) -> None:
        """These lanes arrive; a cluster whose barrier is complete then goes on."""
        twice = lanes[self._arrived[lanes]]
        if len(twice):
            text = "a thread arrives at the cluster's barrier twice without a wait between"
            self.faults.add("barrier", text, instruction, int(twice[0]), count=len(twice))
        clusters = self.wave.cluster[self.wave.block[lanes]]
        for cluster in np.unique(clusters).tolist():
            here = lanes[clusters == cluster]
            phase = self._phases.setdefault(cluster, _Phase())
            clocks, synchronise = self.ordering.clocks, self.ordering.synchronise
            token = clocks.signal(here, synchronise.fenced(here)) if relaxed else clocks.release(here)
            if token is not None:
                phase.token = token if phase.token is None else np.maximum(phase.token, token)
            phase.published = self.ordering.barrier_inits.publish(here, phase.published)
            self._arrived[here] = self._counted[here] = True
            self._complete(cluster)

    def wait(self, lanes: Index, instruction: Instruction) -> Index:
        """These lanes wait; returns those whose phase is not complete, which must block."""
        early = lanes[~self._arrived[lanes]]
        if len(early):
            text = "a thread waits at the cluster's barrier without an arrival"
            self.faults.add("barrier", text, instruction, int(early[0]), count=len(early))
        blocked: list[Index] = [np.zeros(0, np.int64)]
        clusters = self.wave.cluster[self.wave.block[lanes]]
        for cluster in np.unique(clusters).tolist():
            here = lanes[(clusters == cluster) & self._arrived[lanes]]
            open_, done = here[self._counted[here]], here[~self._counted[here]]
            self._pass(self._last.get(cluster), done)
            if len(open_):
                phase = self._phases[cluster]
                phase.waiting = np.concatenate([phase.waiting, open_])
                blocked.append(open_)
        return np.concatenate(blocked)

    def _pass(self, phase: _Phase | None, lanes: Index) -> None:
        """These lanes pass the wait of a complete phase."""
        self._arrived[lanes] = False
        if self.windows.cluster is not None:
            self.windows.cluster.met[lanes] = True
        if phase is None or not len(lanes):
            return
        if phase.token is not None:
            self.ordering.clocks.acquire(lanes, phase.token)
        self.ordering.barrier_inits.learn(lanes, phase.published)

    def _complete(self, cluster: int, leaving: Index | None = None) -> bool:
        """Completes the phase if every thread that has not exited (or is `leaving`) has arrived; returns whether it woke a
        lane."""
        lanes = self.wave.lanes_of_cluster(cluster)
        missing = ~self._counted[lanes] & (self.wave.status[lanes] != EXITED)
        if leaving is not None:
            missing &= ~np.isin(lanes, leaving)
        if missing.any() or cluster not in self._phases:
            return False
        phase = self._last[cluster] = self._phases.pop(cluster)
        self._counted[lanes] = False
        self._pass(phase, phase.waiting)
        self.wave.wake(phase.waiting)
        return bool(len(phase.waiting))

    def leave(self, frame: Frame) -> None:
        if self._phases:
            for cluster in np.unique(self.wave.cluster[frame.block]).tolist():
                self._complete(cluster, frame.lanes)
