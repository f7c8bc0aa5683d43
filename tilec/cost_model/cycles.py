"""Cycles of a launch on a multiprocessor: what each resource takes, and how they combine.

A tile's loop is a pipeline. Its resources work at the same time, so an iteration takes about as long as the slowest: the tensor
cores, shared memory, the copies from L2, the thread that starts copies, the arithmetic units. One more is the *chain* of a
warpgroup, which does some of them one after the other: products whose result the next operation needs, then the arithmetic.
Around the loop come the epilogue and the start of the next block. Consumers that alternate (ping-pong), and those of several
accumulators in tensor memory, store one tile while the loop of another runs. Products that one thread starts into tensor memory
follow each other without a gap, and their operands are read from shared memory once. Blocks go to the multiprocessor that is
free first.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from tilec.cost_model.calibration import Calibration
from tilec.cost_model.cards import Card
from tilec.cost_model.demand import PRODUCTS
from tilec.cost_model.scalars import Array
from tilec.cost_model.tiles import NONE, Tiles
from tilec.cost_model.work import Work

TENSOR: Final = "tensor cores"
CHAIN: Final = "chain"
WARPGROUP: Final = 4
"""Warps of a warpgroup; also the schedulers of a multiprocessor, so that one has a warp for each."""
LINE: Final = 128
"""Bytes that shared memory moves in a cycle without bank conflicts (CUDA programming guide, "Shared memory")."""
TMEM_LINE: Final = 512
"""Bytes that tensor memory moves in a cycle: a column of its 128 lanes. Stated; nobody here has measured it."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Blocks of a launch on a multiprocessor: `fit` at most at once, `used` by this launch; `groups`: warpgroups of consumers
    that work on one tile at the same time."""

    fit: int
    used: int
    groups: int


def occupancy(work: Work, card: Card) -> Occupancy:
    """How many blocks are resident. The schedule's `blocks` is a bound that registers were allocated for."""
    schedule = work.schedule
    by_shared = card.shared // work.reserved_bytes
    registers = schedule.blocks or max(1, REGISTER_THREADS // (32 * work.warps))
    fit = max(1, min(by_shared, card.warps // work.warps, card.blocks, registers))
    used = min(fit, max(1, -(-work.launched // card.multiprocessors)))
    consumers = sum(role.warps for role in schedule.roles if role.helper is None)
    return Occupancy(fit, used, max(1, consumers // WARPGROUP // schedule.consumer_roles))


REGISTER_THREADS: Final = 512
"""Threads of a multiprocessor if each has the 128 registers that kernels with tiles in registers take, of 65536."""


def resources(tiles: Tiles, work: Work, room: Occupancy, card: Card, known: Calibration) -> dict[str, Array]:
    """Cycles that each resource takes for the loops of one tile of each class; those of a multiprocessor's units for one block,
    of which `room.used` share them."""
    inside = tiles.inside
    tensor = products(inside, card, known)
    units = arithmetic(inside, card)
    serial = sum(units.values(), start=np.zeros_like(tensor)) * known.dependent / room.groups
    in_registers = sum((inside[unit] for unit in PRODUCTS if unit.startswith("mma")), start=np.zeros_like(tensor))
    exposed = np.where(in_registers > 0, 1.0, known.exposed) * tensor * room.used
    between = exposed + serial + known.reduction * tiles.trips
    alone = tensor if work.accumulators else tensor / room.groups + known.gap * tiles.trips
    chain = np.where(inside["special"] > 0, between, alone)
    return {
        TENSOR: tensor,
        "shared memory": inside["shared"] / (LINE if work.accumulators else known.shared_rate),
        "copies": tiles.read / known.copy_rate,
        "copy issue": inside["copies"] * known.copy_issue,
        "arithmetic": np.maximum.reduce([*units.values(), (inside["fma"] + inside["alu"] + inside["special"]) / card.lanes]),
        CHAIN: chain,
    }


def products(part: Mapping[str, Array], card: Card, known: Calibration) -> Array:
    """Cycles of the tensor cores."""
    found = np.zeros_like(part["tensor"])
    for unit in PRODUCTS:
        rate = card.mma if unit.startswith("mma") else card.tensor * known.tensor_share
        found = found + part[unit] / (rate * card.speed(unit))
    return found


LOOP_RESOURCES: Final = frozenset({TENSOR, "shared memory", "copies", "copy issue", "arithmetic", CHAIN})
"""The keys of `resources`."""
PER_BLOCK: Final = frozenset({"copy issue", CHAIN})
"""Resources that every block has for itself."""


def arithmetic(part: Mapping[str, Array], card: Card) -> dict[str, Array]:
    """Cycles of the arithmetic units."""
    return {
        "floats": part["fma"] / card.lanes,
        "integers and conversions": part["alu"] / card.half_lanes,
        "special functions": part["special"] / card.special,
        "shuffles": part["shuffle"] / (card.lanes / 4),
        "tensor memory": part["tmem"] / TMEM_LINE,
    }


def loop_cycles(parts: Mapping[str, Array], room: Occupancy) -> Array:
    """Cycles of a tile's loops while `room.used` blocks share the multiprocessor."""
    scaled = [one * (1 if name in PER_BLOCK else room.used) for name, one in parts.items()]
    return np.maximum.reduce(scaled)


def epilogue_cycles(tiles: Tiles, room: Occupancy, card: Card, known: Calibration) -> Array:
    """Cycles of a tile outside of its loops."""
    around = tiles.around
    units = arithmetic(around, card)
    stored = (around["shared"] + tiles.written) / LINE * known.store_cycles
    lanes = sum(units.values(), start=np.zeros_like(stored))
    return products(around, card, known) + stored + lanes * known.dependent / room.groups + known.tail


def launch_cycles(
    work: Work, tiles: Tiles, room: Occupancy, loop: Array, epilogue: Array, card: Card, known: Calibration
) -> float:
    """Cycles from the first product of a launch to its end."""
    if work.schedule.persistent:
        turns = int((tiles.index != NONE).sum(axis=1).max(initial=0))
        most, after = float(loop.max(initial=0.0)), float(epilogue.max(initial=0.0))
        if work.schedule.consumer_roles > 1:
            return turns * max(most, (most + after) / 2) + after
        if work.accumulators > 1:
            return most + (turns - 1) * max(most, after) + after
        return turns * (most + after)
    tile = (loop + epilogue + known.next_block)[tiles.index[:, 0]]
    return scheduled(tile, card.multiprocessors * room.used) - known.next_block


def scheduled(blocks: Array, slots: int) -> float:
    """When the last block ends if each starts in the slot that is free first."""
    if blocks.size <= slots or float(np.ptp(blocks)) == 0.0:
        return -(-blocks.size // slots) * float(blocks.max(initial=0.0))
    ends = [0.0] * slots
    for length in blocks.tolist():
        heapq.heapreplace(ends, ends[0] + length)
    return max(ends)
