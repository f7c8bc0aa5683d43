"""Random histories of reads, writes, messages and barriers of one block: the race shadow against vector clocks that record
every access of every lane."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilec.emulator.machine.wave import Wave
from tilec.emulator.ordering.clocks import Clocks
from tilec.emulator.ordering.races import Shadow
from tilec.emulator.ptx.syntax import Instruction

WARPS, LANES, GRANULES, STEPS = 3, 96, 4, 60


def shadow_of_one_block() -> tuple[Clocks, Shadow]:
    """The shadow of a launch with mbarriers."""
    arrive = Instruction("mbarrier", ("arrive",), (), None, False, 1, "mbarrier.arrive")
    wave = Wave(LANES)
    wave.start([(0, 0, 0)], 0)
    clocks = Clocks(wave)
    return clocks, Shadow(clocks, 4 * GRANULES, [arrive])


class Exact:
    """Vector clocks: the time of each lane that each lane has observed, and for each granule each lane's last read and
    write."""

    def __init__(self) -> None:
        self.knows = np.eye(LANES, dtype=np.int64)
        self.reads = np.zeros((GRANULES, LANES), np.int64)
        self.writes = np.zeros((GRANULES, LANES), np.int64)

    def races(self, granules: Any, lanes: Any, is_write: bool) -> bool:
        """Whether one of these accesses, a granule a lane, would race."""
        racing = False
        for granule, lane in zip(granules.tolist(), lanes.tolist(), strict=True):
            others = self.writes[granule] > self.knows[lane]
            if is_write:
                others |= self.reads[granule] > self.knows[lane]
            others[lane] = False
            racing |= bool(others.any())
        return racing

    def record(self, granules: Any, lanes: Any, is_write: bool) -> None:
        for granule, lane in zip(granules.tolist(), lanes.tolist(), strict=True):
            (self.writes if is_write else self.reads)[granule, lane] = self.knows[lane, lane]

    def release(self, lanes: Any) -> Any:
        token = self.knows[lanes].max(axis=0)
        self.knows[lanes, lanes] += 1
        return token

    def acquire(self, lanes: Any, token: Any) -> None:
        own = self.knows[lanes, lanes]
        self.knows[lanes] = np.maximum(self.knows[lanes], token)
        self.knows[lanes, lanes] = own

    def barrier(self, lanes: Any) -> None:
        self.acquire(lanes, self.release(lanes))


def first_race(seed: int, whole_warps: bool) -> tuple[int | None, int | None]:
    """The steps at which the exact clocks and the shadow find the first race of a history, or None. Most racing accesses are
    skipped, so that histories become long."""
    random = np.random.default_rng(seed)
    (clocks, shadow), exact = shadow_of_one_block(), Exact()
    tokens: list[tuple[Any, Any]] = []
    found: list[int | None] = [None, None]
    for step in range(STEPS):
        warp = np.arange(32) + 32 * int(random.integers(WARPS))
        lanes = warp if whole_warps else np.sort(random.choice(warp, int(random.integers(1, 4)), replace=False))
        event = random.choice(["read", "write", "release", "acquire", "warp", "block"], p=[0.36, 0.08, 0.22, 0.22, 0.08, 0.04])
        if event in ("read", "write"):
            one = event == "write"
            lanes = lanes[:1] if one else lanes
            granules = random.integers(0, GRANULES, len(lanes))
            racing = exact.races(granules, lanes, one)
            if racing and random.random() < 0.9:
                continue
            exact.record(granules, lanes, one)
            result = shadow.write(granules * 4, 4, lanes)[::2] if one else (shadow.read(granules * 4, 4, lanes),)
            results = racing, any(part is not None and part.any() for part in result)
            found = [step if known is None and raced else known for known, raced in zip(found, results, strict=True)]
            if results[0] or results[1]:
                break
        elif event == "release":
            tokens.append((exact.release(lanes), clocks.release(lanes)))
        elif event == "acquire" and tokens:
            left, right = tokens[int(random.integers(len(tokens)))]
            exact.acquire(lanes, left)
            clocks.acquire(lanes, right)
        elif event == "warp":
            exact.barrier(warp)
            clocks.warp_barrier(warp[:1] // 32)
        elif event == "block":
            exact.barrier(np.arange(LANES))
            clocks.block_barrier(np.zeros(1, np.int64))
    return found[0], found[1]


@pytest.mark.parametrize("part", range(2))
def test_whole_warps_are_checked_exactly(part: int) -> None:
    verdicts = [first_race(seed, True) for seed in range(100 * part, 100 * part + 100)]
    assert all(exact == shadow for exact, shadow in verdicts)
    assert 10 < sum(exact is None for exact, _ in verdicts) < 90


@pytest.mark.parametrize("part", range(2))
def test_no_race_of_single_lanes_is_missed(part: int) -> None:
    verdicts = [first_race(seed, False) for seed in range(100 * part, 100 * part + 100)]
    assert all(exact is None or shadow == exact for exact, shadow in verdicts)
    assert sum(exact != shadow for exact, shadow in verdicts) < 5, "few are blamed wrongly"
