"""Bytes between L2 and memory, against a simulation box by box."""

from __future__ import annotations

import pytest

from tests.cost_model.planned_launches import ONE_TILE, PERSISTENT, matmul, product, work
from tilec.cost_model.traffic import traffic
from tilec.cost_model.work import Box, Work
from tilec.target.schedule import Overrides

SIDES = (2048, 1024, 512)


def boxes_of_wave(found: Work, at_once: int) -> list[list[tuple[str, tuple[int, ...], float]]]:
    """The boxes of each wave: blocks in launch order, or turns of persistent blocks."""
    blocks, turns = found.tiles.shape
    processed = [(block, turn) for turn in range(turns) for block in range(blocks) if found.tiles[block, turn]]
    size = blocks if turns > 1 else at_once
    waves = [processed[first : first + size] for first in range(0, len(processed), size)]
    reads = [box for box in found.boxes() if not box.written]
    return [[_box(box, block, turn) for block, turn in wave for box in reads] for wave in waves]


def _box(box: Box, block: int, turn: int) -> tuple[str, tuple[int, ...], float]:
    turn %= box.key.shape[1]
    return box.tensor, tuple(box.key[block, turn].tolist()), float(box.bytes[block, turn])


@pytest.mark.parametrize("overrides", [ONE_TILE, PERSISTENT], ids=["one tile", "persistent"])
def test_without_a_cache_each_wave_reads_its_boxes_once(overrides: Overrides) -> None:
    found = work(matmul(128, 128, overrides), product(*SIDES))
    expected = sum(sum({(tensor, key): size for tensor, key, size in wave}.values()) for wave in boxes_of_wave(found, 132))
    assert traffic(found, 132, 0.0).read == expected


def test_a_cache_of_any_size_leaves_each_box_to_be_read_once() -> None:
    found = work(matmul(128, 128, ONE_TILE), product(*SIDES))
    assert traffic(found, 132, 1e12).read == 2 * (2048 * 512 + 1024 * 512)
    assert traffic(found, 1, 1e12).read == 2 * (2048 * 512 + 1024 * 512)


@pytest.mark.parametrize("cache", [0.3e6, 0.6e6, 1.3e6])
def test_blocks_one_by_one_use_the_cache_like_a_list_of_recent_boxes(cache: float) -> None:
    """One block at a time: a box is kept if what was moved since its last use, and the box, fit the cache."""
    found = work(matmul(128, 128, ONE_TILE), product(*SIDES))
    moved = read = 0.0
    last: dict[tuple[str, tuple[int, ...]], float] = {}
    for wave in boxes_of_wave(found, 1):
        begin = moved
        for tensor, key, size in wave:
            address = tensor, key
            if address not in last or begin - last[address] + size > cache:
                read += size
            last[address] = begin
            moved += size
    assert traffic(found, 1, cache).read == read


def test_neighbours_in_groups_share_boxes() -> None:
    """132 tiles in groups of four rows lie in 33 or 34 columns and at most eight rows; each reads two boxes."""
    found = work(matmul(128, 128, PERSISTENT), product(8192, 8192, 512))
    moved = traffic(found, 132, 0.0)
    assert moved.read <= moved.copied * (34 + 8) / (2 * 132)
    assert moved.written == 2 * 8192 * 8192
