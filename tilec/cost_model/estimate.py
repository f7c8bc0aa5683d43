"""The predicted time of a launch: its work and a card in, microseconds with their parts out.

Time is what precedes the first product, and then the larger of two: cycles over the clock, and bytes over the bandwidth of
memory. The clock is the highest at which the card stays below its power limit: power is static power plus the energy of all
operations over the time they take, and the energy of an operation grows with a power of the clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from tilec.cost_model.calibration import CALIBRATION, Calibration
from tilec.cost_model.cards import Card
from tilec.cost_model.cycles import (
    CHAIN,
    PER_BLOCK,
    TENSOR,
    Occupancy,
    epilogue_cycles,
    launch_cycles,
    loop_cycles,
    occupancy,
    resources,
    scheduled,
)
from tilec.cost_model.demand import PRODUCTS
from tilec.cost_model.scalars import Array
from tilec.cost_model.tiles import NONE, Tiles, tiles_of
from tilec.cost_model.traffic import Traffic, traffic
from tilec.cost_model.work import Work

LEAST_CLOCK: Final = 0.5
"""Share of the highest clock below which the model does not go."""
STEPS: Final = 24
"""Halvings of the clock's range: to 1e-7 of it."""
MEMORY: Final = "memory"
LAUNCH: Final = "launch"
MOSTLY: Final = 0.9
"""Share of a chain from which its products decide."""
EPILOGUE: Final = "epilogue"
UNSCALED: Final[Mapping[str, float]] = {}


@dataclass(frozen=True, slots=True)
class Estimate:
    """A launch: predicted `microseconds`; `clock` in Hz; by resource, microseconds that it alone would take (`parts`); `bound`,
    the resource that takes longest; `traffic` in bytes; `multiply_adds` with padding."""

    microseconds: float
    clock: float
    parts: Mapping[str, float]
    bound: str
    traffic: Traffic
    multiply_adds: float


@dataclass(frozen=True, slots=True)
class Prepared:
    """What does not depend on the calibration, but for `cache_share`. `multiply_adds`: of bf16 in the time of all of them."""

    work: Work
    tiles: Tiles
    room: Occupancy
    traffic: Traffic
    multiply_adds: float


def prepared(work: Work, card: Card, known: Calibration = CALIBRATION) -> Prepared:
    """The tiles, occupancy and traffic of a launch on a card."""
    room, tiles = occupancy(work, card), tiles_of(work)
    moved = traffic(work, card.multiprocessors * room.used, card.cache * known.cache_share)
    return Prepared(work, tiles, room, moved, sum(work.total(unit) / card.speed(unit) for unit in PRODUCTS))


def estimate(
    ready: Prepared, card: Card, known: Calibration = CALIBRATION, *, overlapped: bool = False, left: int | None = None,
    scale: Mapping[str, float] = UNSCALED,
) -> Estimate:  # fmt: skip
    """The time of a launch in a CUDA graph, after another. `overlapped`: it may begin while that one still runs, which leaves
    `left` bytes of shared memory of a multiprocessor (None: a launch like this one). `scale`: factors on what
    resources of the loops take, to see what another schedule would win."""
    work, tiles, room = ready.work, ready.tiles, ready.room
    parts = {name: one * scale.get(name, 1.0) for name, one in resources(tiles, work, room, card, known).items()}
    loop, epilogue = loop_cycles(parts, room), epilogue_cycles(tiles, room, card, known)
    cycles = launch_cycles(work, tiles, room, loop, epilogue, card, known)
    first = known.node + known.start
    if overlapped:
        left = card.shared - room.used * work.reserved_bytes if left is None else left
        first = known.start_resident if left >= work.reserved_bytes else known.start_waiting
    moved = ready.traffic
    if moved.read:
        first += known.latency
    memory = (moved.read + moved.written) / (card.memory * known.memory_share)
    clock = _clock(ready, first, cycles, memory, card, known)
    seconds = first + _larger(cycles / clock, memory, known.contention)
    shared_by = {name: 1 if name in PER_BLOCK else room.used for name in parts}
    alone = {name: _alone(one, tiles, shared_by[name], room, work, card) / clock for name, one in parts.items()}
    alone |= {MEMORY: memory, EPILOGUE: _alone(epilogue, tiles, 1, room, work, card) / clock, LAUNCH: first}
    bound = _bound(alone)
    return Estimate(1e6 * seconds, clock, {name: 1e6 * one for name, one in alone.items()}, bound, moved, ready.multiply_adds)


def _bound(alone: Mapping[str, float]) -> str:
    """What takes longest. A chain that is little more than its products is bound by the tensor cores."""
    most = max(alone, key=lambda name: alone[name])
    return TENSOR if most == CHAIN and alone[TENSOR] >= MOSTLY * alone[CHAIN] else most


def _larger(a: float, b: float, contention: float) -> float:
    """About the larger of two times that pass at once: near equality each disturbs the other."""
    return (a**contention + b**contention) ** (1 / contention)


def _clock(ready: Prepared, first: float, cycles: float, memory: float, card: Card, known: Calibration) -> float:
    moved = ready.traffic
    switched = card.energy * (ready.multiply_adds * known.mac_joules + moved.copied * known.copied_joules)
    fixed = (moved.read + moved.written) * known.memory_joules

    def watts(clock: float) -> float:
        seconds = first + _larger(cycles / clock, memory, known.contention)
        return known.static_watts + (switched * (clock / card.clock) ** known.clock_power + fixed) / seconds

    low, high = LEAST_CLOCK * card.clock, card.clock
    if watts(high) <= card.watts:
        return high
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if watts(middle) <= card.watts else (low, middle)
    return low


def _alone(cycles: Array, tiles: Tiles, blocks: int, room: Occupancy, work: Work, card: Card) -> float:
    """Cycles of the busiest multiprocessor if a resource, which `blocks` share, were all that a launch waits for."""
    taken = np.where(tiles.index == NONE, 0.0, cycles[tiles.index])
    if work.schedule.persistent:
        return float(taken.sum(axis=1).max(initial=0.0)) * blocks
    return scheduled(taken[:, 0] * blocks, card.multiprocessors * room.used)
