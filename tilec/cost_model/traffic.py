"""Bytes between the L2 cache and memory, by the order in which the tiles of a launch run.

Blocks run in waves: as many as fit the multiprocessors at once. A wave reads each distinct box once from memory, unless a wave
before left it in the cache. A box is still there if what all waves since then have moved fits the cache. Data that one launch
leaves for the next is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilec.cost_model.scalars import Array
from tilec.cost_model.work import Box, Work


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of a launch: `read` from memory into the L2 cache, `copied` from there to multiprocessors, `written`."""

    read: float
    copied: float
    written: float


def traffic(work: Work, at_once: int, cache_bytes: float) -> Traffic:
    """The traffic of a launch if `at_once` blocks run at once, with a cache of that size."""
    read = [box for box in work.boxes() if not box.written]
    written = sum(_sum(box, work) for box in work.boxes() if box.written)
    numbered = _numbered(read, work)
    total = sum(_sum(box, work) for box in read)
    waves = list(_waves(work, at_once))
    sizes = np.concatenate([one for _, one in numbered]) if numbered else np.zeros(0)
    last_used = np.full(sizes.size, -1)
    moved = np.zeros(len(waves) + 1)
    fetched = 0.0
    for number, wave in enumerate(waves):
        start, parts = 0, list[Array]()
        for ids, own in numbered:
            parts.append(np.unique(ids[wave]) + start)
            start += own.size
        used = np.concatenate(parts) if parts else np.zeros(0, dtype=int)
        since = moved[number] - moved[np.maximum(last_used[used], 0)]
        kept = (last_used[used] >= 0) & (since + sizes[used] <= cache_bytes)
        fetched += float(sizes[used[~kept]].sum())
        last_used[used] = number
        moved[number + 1] = moved[number] + sizes[used].sum()
    return Traffic(fetched, total, written)


def _sum(box: Box, work: Work) -> float:
    return float(np.broadcast_to(box.bytes, work.tiles.shape)[work.tiles].sum())


def _numbered(boxes: list[Box], work: Work) -> list[tuple[Array, Array]]:
    """For each kind of box, a number of every tile's box, and the bytes of each. Boxes of one tensor with equal offsets share a
    number."""
    found: list[tuple[Array, Array]] = []
    shape = work.tiles.shape
    for box in boxes:
        keys = np.broadcast_to(box.key, (*shape, box.key.shape[-1])).reshape(-1, box.key.shape[-1])
        _, ids = np.unique(keys, axis=0, return_inverse=True)
        ids = ids.ravel()
        sizes = np.zeros(int(ids.max(initial=0)) + 1)
        np.maximum.at(sizes, ids, np.broadcast_to(box.bytes, shape).ravel())
        found.append((ids, sizes))
    return found


def _waves(work: Work, at_once: int) -> list[Array]:
    """The flat places of the tiles that run at the same time."""
    blocks, turns = work.tiles.shape
    blocks_in_order: Array = np.arange(blocks * turns, dtype=np.int64).reshape((blocks, turns))
    if turns > 1:
        return [blocks_in_order[work.tiles[:, turn], turn] for turn in range(turns)]
    return [blocks_in_order[first : first + at_once, 0] for first in range(0, blocks, max(1, at_once))]
