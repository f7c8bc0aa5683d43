"""A row of a product of small M has the same bits in tiles of any number of rows: batches of all sizes choose the same tokens.

By the emulator, which runs the instructions. The interpreter's products are NumPy's, whose sums depend on a tile's shape."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from tests import shipped
from tests.clean import check_clean
from tests.emulator.shipped_run import target_named
from tests.programs.machines import manifest
from tilec.codegen import to_ptx
from tilec.emulator import launch
from tilec.lowering import lower
from tilec.passes.schedule import choose
from tilec.target.schedule import merged

Array = NDArray[Any]
Tile = tuple[int, int]
"""Its rows of tokens and its columns of outputs."""
OF_WEIGHTS: tuple[Tile, ...] = ((16, 64), (32, 64), (64, 64), (128, 64), (128, 128))
TILES: dict[str, tuple[Tile, ...]] = {
    "matmul_few": (*OF_WEIGHTS, (128, 96)), "matmul_split": OF_WEIGHTS,
    "matmul_silu_mul_few": (
        (64, 64), (64, 24), (64, 80), (64, 112), (128, 64), (128, 48), (128, 96), (256, 24), (256, 64), (256, 80), (256, 96)
    ),
}  # fmt: skip
ELSEWHERE: dict[str, tuple[Tile, ...]] = {
    "matmul_few": ((128, 64), (128, 96)), "matmul_split": ((128, 64),), "matmul_silu_mul_few": ((128, 64), (256, 64)),
}  # fmt: skip
"""Tiles of other architectures."""
CASES = [
    *((name, tile, "sm_90a") for name, tiles in TILES.items() for tile in tiles[1:]),
    *((name, tile, arch) for name, tiles in ELSEWHERE.items() for tile in tiles for arch in ("sm_100a", "sm_120a")),
]
K, N, PARTS = 328, 40, 3
"""A depth whose last step is not full, outputs that fill no tile, and parts of a split, the last of which has fewer steps."""
ROWS = 19


def problem(name: str, seed: int) -> dict[str, Array]:
    """Inputs with numbers of many sizes, whose sums differ by their order."""
    rng = np.random.default_rng(seed)

    def drawn(*shape: int) -> Array:
        return (rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 7, shape)).astype(ml_dtypes.bfloat16)

    return {"a": drawn(ROWS, K), "b": drawn(2, N, K) if "silu" in name else drawn(N, K)}


def outputs(name: str, rows: int) -> dict[str, Array]:
    """Tensors for what a product writes."""
    if name == "matmul_split":
        return {"parts": np.full((PARTS, rows, N), np.nan, np.float32)}
    return {"out": np.full((rows, N), np.nan, ml_dtypes.bfloat16)}


def specialised(name: str, tile: Tile, arch: str) -> tuple[Any, dict[str, Any]]:
    """The build's specialisation for a tile."""
    rows, columns = tile
    return shipped.specialisation(name, {"E": "bf16", "BM": rows, "BN": columns, "S": PARTS}, target_named(arch))


@cache
def ptx(name: str, tile: Tile, arch: str) -> tuple[str, Any]:
    """The PTX of a specialisation, and its manifest."""
    target = target_named(arch)
    entry, constants = specialised(name, tile, arch)
    overrides = merged(entry.overrides(constants), target)
    schedule = choose(shipped.load(name, constants), target, overrides)
    scheduled = shipped.prepared_with(shipped.load(name, constants), target, overrides)
    lowered = lower(scheduled, target, min_blocks=schedule.blocks)
    return to_ptx(lowered.mlir, target), manifest(scheduled, lowered, target, schedule)


def emulated(name: str, tile: Tile, arch: str, t: dict[str, Array]) -> Array:
    """What the PTX computes."""
    text, described = ptx(name, tile, arch)
    arrays = {**{key: array.copy() for key, array in t.items()}, **outputs(name, len(t["a"]))}
    sizes = {"M": len(t["a"]), "N": N, "I": N, "K": K}
    report = launch.emulate(text, described, arrays, {**described.constants, **sizes})
    check_clean(report)
    return report.tensors["parts" if name == "matmul_split" else "out"]


@pytest.mark.parametrize(("name", "tile", "arch"), CASES)
def test_the_machine_code_has_the_same_bits(name: str, tile: Tile, arch: str) -> None:
    """The emulator adds the products of an instruction in one order, so equal bits follow from the instructions of a row."""
    t = problem(name, sum(tile))
    np.testing.assert_array_equal(emulated(name, tile, arch, t), emulated(name, TILES[name][0], arch, t))


@pytest.mark.parametrize("name", list(TILES))
def test_a_row_has_the_bits_that_it_has_alone(name: str) -> None:
    t = problem(name, 1)
    whole = emulated(name, (64, 64), "sm_90a", t)
    for row in (0, 7, ROWS - 1):
        one = {**t, "a": t["a"][row : row + 1]}
        np.testing.assert_array_equal(emulated(name, TILES[name][0], "sm_90a", one), whole[..., row : row + 1, :])


def left(name: str, tile: Tile) -> tuple[int, int]:
    """Rows of the left operand of a tile's products and columns of the right one: tokens are on the left in gate and up, and
    where a tile's weights do not fill 64 rows."""
    rows, columns = tile
    if "silu" in name:
        return rows, 2 * columns
    return (columns, rows) if columns % 64 == 0 else (rows, columns)


@pytest.mark.parametrize("name", list(TILES))
def test_an_iteration_has_the_same_products(name: str) -> None:
    """Of any tile: the depth of an instruction, and how many of them add to one accumulator for each step of 64."""
    shape = re.compile(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k(\d+)\.f32\.bf16\.bf16")
    steps: set[float] = set()
    for tile in TILES[name]:
        text, described = ptx(name, tile, "sm_90a")
        products, (rows, columns) = shape.findall(text), left(name, tile)
        assert {int(width) for width, _ in products} == {columns}
        assert {int(depth) for _, depth in products} == {16}
        of_tile = rows // 64 // (described.block // 128 - 1)  # accumulators of a consumer, next to the producer
        steps.add(len(products) / of_tile)
    assert len(steps) == 1
