"""The work that is derived from scheduled tile IR, against counts of the same launch by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.cost_model.planned_launches import (
    ONE_TILE,
    PERSISTENT,
    PINGPONG,
    launch,
    matmul,
    product,
    prompt,
    scheduled,
    work,
)
from tilec.cost_model.cards import CARDS
from tilec.cost_model.estimate import estimate
from tilec.cost_model.tiles import NONE
from tilec.cost_model.work import MOST_BLOCKS, UnknownWork
from tilec.target.schedule import Overrides

SIZE = 2
B200 = CARDS["b200"]
ONE_THREAD = Overrides(copy="tma", persistent=True, store="tma")
"""Products of one thread into tensor memory, on targets that have it."""
SHAPES = ((1000, 1000, 1000), (2048, 6144, 2560), (8, 40, 8), (129, 4000, 72))


def up(value: int, tile: int) -> int:
    return -(-value // tile)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("overrides", [PINGPONG, PERSISTENT, ONE_TILE], ids=["pingpong", "persistent", "one tile"])
def test_multiply_adds_are_those_of_whole_tiles(shape: tuple[int, int, int], overrides: Overrides) -> None:
    m, n, k = shape
    found = work(matmul(128, 128, overrides), product(m, n, k))
    assert found.total("tensor") == up(m, 128) * up(n, 128) * up(k, 64) * 128 * 128 * 64
    assert found.tiles.sum() == up(m, 128) * up(n, 128)


@pytest.mark.parametrize("shape", SHAPES)
def test_bytes_outside_the_tensors_are_not_copied(shape: tuple[int, int, int]) -> None:
    """Each tile reads its rows of a and of b, as far as they are there; the last iteration counts as a whole one."""
    m, n, k = shape
    whole = up(k, 64) * min(k, 64)
    rows = [min(128, m - start) for start in range(0, m, 128)]
    columns = [min(160, n - start) for start in range(0, n, 160)]
    expected = SIZE * whole * (sum(rows) * len(columns) + sum(columns) * len(rows))
    found = launch(matmul(128, 160, PINGPONG), product(m, n, k))
    assert found.traffic.copied == expected
    assert found.traffic.written == SIZE * m * n


def test_shared_memory_moves_operands_and_copies() -> None:
    """128 x 256 by two warpgroups: each reads its 64 rows of a and all of b; the copies write both once."""
    found = work(matmul(128, 256, Overrides(copy="tma", consumers=2, stages=3)), product(128, 256, 640))
    read, written = 2 * (64 + 256) * 64 * SIZE, (128 + 256) * 64 * SIZE
    inside = sum(float(role.inside["shared"].sum()) for role in found.roles if "shared" in role.inside)
    assert inside == 10 * (read + written)


def test_consumers_take_tiles_alternately() -> None:
    found = work(matmul(128, 128, PINGPONG), product(4096, 4096, 128))
    first, second = (np.broadcast_to(role.inside["tensor"] > 0, found.tiles.shape) for role in found.roles[:2])
    assert not (first & second).any() and ((first | second) == found.tiles).all()
    assert first[:, ::2].any() and not first[:, 1::2].any()


@pytest.mark.parametrize(("tokens", "past"), [(512, 0), (1000, 536), (64, 64)])
def test_causal_attention_does_what_lies_below_the_diagonal(tokens: int, past: int) -> None:
    """Each row of tiles multiplies with all key tiles that it sees, twice: scores and values."""
    made = scheduled(
        "flash_attention", (("E", "bf16"), ("D", 128), ("BM", 128), ("BN", 128)), Overrides(copy="tma", consumers=2, stages=2)
    )
    found = work(made, prompt(tokens, past))
    key_tiles = sum(up(min(past + row + 128, past + tokens), 128) for row in range(0, tokens, 128))
    assert found.total("tensor") == 2 * 3 * 2 * key_tiles * 128**3
    exponentials = 2 * 3 * key_tiles * (128 * 128 + 128 * 4)  # of scores, and of each row's shrinkage in four lanes
    divisions = 2 * 3 * up(tokens, 128) * 128 * 4
    assert found.total("special") == exponentials + divisions


def test_other_architectures_multiply_from_registers() -> None:
    made = matmul(128, 128, Overrides(), "sm_100a")
    found = work(made, product(1024, 1024, 1024), B200)
    assert found.total("mma") == 1024**3
    assert found.total("tensor") == 0


@pytest.mark.parametrize("shape", SHAPES)
def test_a_thread_multiplies_whole_tiles_that_warps_store(shape: tuple[int, int, int]) -> None:
    """Products of one thread read both operands once. The tiles that warps load and store are those of the blocks, not
    iterations: each is written once."""
    m, n, k = shape
    found = launch(matmul(128, 256, ONE_THREAD, "sm_100a"), product(m, n, k), B200)
    tiles, trips = up(m, 128) * up(n, 256), up(k, 64)
    assert found.work.total("tensor") == tiles * trips * 128 * 256 * 64
    assert found.work.total("tmem") == tiles * 128 * 256 * 4
    moved = {role.name: float(role.inside["shared"].sum()) for role in found.work.roles if "shared" in role.inside}
    operands = tiles * trips * (128 + 256) * 64 * SIZE
    assert moved == {"producer": operands, "multiplier": operands}
    assert found.traffic.written == SIZE * m * n
    assert found.work.accumulators == 2


@pytest.mark.parametrize("shape", SHAPES)
def test_the_blocks_of_a_pair_share_a_tile(shape: tuple[int, int, int]) -> None:
    """Each block copies its rows of a and half of the rows of b, multiplies its rows with all of b, and stores its rows."""
    m, n, k = shape
    found = launch(matmul(256, 256, dataclasses.replace(ONE_THREAD, cluster=2), "sm_100a"), product(m, n, k), B200)
    tiles, trips = up(m, 256) * up(n, 256), up(k, 64)
    assert found.work.launched == 2 * min(tiles, 74)
    assert found.work.total("tensor") == tiles * trips * 256 * 256 * 64
    moved = {role.name: float(role.inside["shared"].sum()) for role in found.work.roles if "shared" in role.inside}
    operands = tiles * trips * (256 + 256) * 64 * SIZE
    assert moved == {"producer": operands, "multiplier": operands}
    whole = up(k, 64) * min(k, 64)
    assert found.traffic.copied == SIZE * whole * (m * up(n, 256) + n * up(m, 256))
    assert found.traffic.written == SIZE * m * n


def test_a_tile_is_stored_while_the_next_is_multiplied() -> None:
    """With two accumulators in tensor memory a deep product takes its loops and one epilogue, with one an epilogue a turn."""
    values = product(4096, 4096, 4096)
    two = launch(matmul(128, 256, ONE_THREAD, "sm_100a"), values, B200)
    one = dataclasses.replace(two, work=dataclasses.replace(two.work, accumulators=1))
    card = dataclasses.replace(B200, watts=1e9)  # at one clock
    found, slower = estimate(two, card), estimate(one, card)
    turns = int((two.tiles.index != NONE).sum(axis=1).max())
    saved = (turns - 1) / turns * slower.parts["epilogue"]
    assert turns > 2 and 0.9 * saved < slower.microseconds - found.microseconds < 1.1 * saved


def test_attention_in_tensor_memory_loads_scores_and_stores_weights() -> None:
    """Each pair of tiles: scores are loaded and half as many bytes of weights stored; sums are set once, loaded once, and
    hardly ever scaled; the second product reads its left operand from tensor memory. A fourth of the exponentials are
    polynomials."""
    constants = (("E", "bf16"), ("D", 128), ("BM", 256), ("BN", 128))
    found = work(scheduled("flash_attention", constants, Overrides(copy="tma", consumers=2), "sm_100a"), prompt(256), B200)
    blocks, trips, tile = 6, 2, 256 * 128
    assert found.total("tensor") == blocks * trips * 2 * tile * 128
    assert found.total("tmem") == blocks * tile * (trips * (4 + 2) + 4 + 4)
    rows = blocks * trips * 256
    assert found.total("special") == rows * (128 * 3 / 4 + 1) + blocks * 256  # of each row its factor, and its division
    read = blocks * trips * SIZE * (2 * 128 * 128 + 128 * 128) * 2
    assert found.total("shared") >= read


def test_tiles_of_one_class_are_counted_once() -> None:
    found = launch(matmul(128, 128, PERSISTENT), product(4096, 4096, 512)).tiles
    assert (found.index != NONE).sum() == 32 * 32
    assert len(found.trips) == 1 and found.trips[0] == 8


def test_launches_that_cannot_be_counted_are_refused() -> None:
    made = matmul(64, 64, Overrides(copy="tma", consumers=1, stages=4))
    side = 64 * 1100
    with pytest.raises(UnknownWork, match=str(MOST_BLOCKS)):
        work(made, product(side, side, 64))
