"""A row has the same bits wherever it is: in tiles of any number of rows if weights have eight or four bits, in any tile of
products of both operands in eight bits, and in any slot among the rows of its expert.

By the emulator, which runs the instructions. The interpreter's products are NumPy's, whose sums depend on a tile's shape."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from tests import shipped
from tests.campaign import first
from tests.clean import check_clean
from tests.emulator.shipped_run import target_named
from tests.programs.machines import manifest
from tilec.codegen import to_ptx
from tilec.emulator import launch
from tilec.lowering import lower
from tilec.passes.schedule import choose
from tilec.target.schedule import merged

Array = NDArray[Any]
BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
N, ROWS, PARTS = 128, 19, 3


@cache
def ptx(name: str, arch: str, wanted: tuple[tuple[str, Any], ...]) -> tuple[str, Any]:
    """The PTX of the build's specialisation with these constants, and its manifest."""
    target = target_named(arch)
    entry, constants = shipped.specialisation(name, dict(wanted), target)
    overrides = merged(entry.overrides(constants), target)
    schedule = choose(shipped.load(name, constants), target, overrides)
    scheduled = shipped.prepared_with(shipped.load(name, constants), target, overrides)
    lowered = lower(scheduled, target, min_blocks=schedule.blocks)
    return to_ptx(lowered.mlir, target), manifest(scheduled, lowered, target, schedule)


def emulated(
    name: str, arch: str, t: Mapping[str, Array], output: str, shape: tuple[int, ...], dtype: Any, **wanted: Any
) -> Array:
    """What the PTX writes to `output`, which has no number before. Dims are those of the tensors."""
    text, described = ptx(name, arch, tuple(sorted({"E": "bf16", **wanted}.items())))
    arrays = {**{key: array.copy() for key, array in t.items()}, output: np.full(shape, np.nan, dtype)}
    a, b = t["a"], t["b"]
    sizes = {"M": a.shape[0], "S": len(t.get("tiles", ())), "X": len(b), "K": a.shape[1], "N": b.shape[-2]}
    sizes |= {"I": shape[-1], "I2": 2 * shape[-1]}
    report = launch.emulate(text, described, arrays, {**sizes, **described.constants})
    check_clean(report)
    return report.tensors[output]


def numbers(rng: np.random.Generator, *shape: int) -> Array:
    """Of many sizes, whose sums differ by their order."""
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 7, shape)).astype(BF16)


def codes(rng: np.random.Generator, form: str, *shape: int) -> dict[str, Array]:
    """Weights (..., N, K) in a format."""
    *outer, outputs, depth = shape
    if form == "16bit":
        return {"b": numbers(rng, *shape)}
    if form == "fp8":
        scales = np.exp2(rng.integers(-9, 0, (*outer, outputs // 128, depth // 128))).astype(np.float32)
        return {"b": numbers(rng, *shape).astype(E4M3), "b_scales": scales}
    groups = (*outer, depth // 128, outputs)
    return {
        "b": rng.integers(0, 1 << 32, (*outer, outputs, depth // 8), np.uint32),
        "b_scales": np.exp2(rng.integers(-9, 0, groups)).astype(BF16), "b_zeros": rng.integers(0, 16, groups, np.uint8),
    }  # fmt: skip


FEW = [f"{name}_{form}" for form in ("fp8", "int4") for name in ("matmul_split", "matmul_silu_mul_few", "matmul_few")]


def few(name: str, tile: int, arch: str, t: Mapping[str, Array], outputs: int) -> Array:
    """A product of small M by codes, in tiles of `tile` rows."""
    wanted: dict[str, Any] = {"BM": tile, **({"F": "bf16"} if name.endswith("int4") else {})}
    if "split" in name:
        return emulated(name, arch, t, "parts", (PARTS, len(t["a"]), outputs), np.float32, S=PARTS, **wanted)
    return emulated(name, arch, t, "out", (len(t["a"]), outputs), BF16, **wanted)


@pytest.mark.parametrize(("name", "arch"), first(6, [(name, arch) for arch in ("sm_90a", "sm_120a") for name in FEW]))
def test_tiles_of_any_rows_have_the_same_bits(name: str, arch: str) -> None:
    """In tiles of 16 and 32 rows, together and alone."""
    rng = np.random.default_rng(7)
    double = 2 if "silu" in name else 1
    t = {"a": numbers(rng, ROWS, 1024), **codes(rng, name.rpartition("_")[2], double * N, 1024)}
    whole = few(name, 32, arch, t, N)
    assert np.isfinite(whole.astype(np.float32)).all()
    assert few(name, 16, arch, t, N).tobytes() == whole.tobytes()
    for row in (0, ROWS - 1):
        one = {**t, "a": t["a"][row : row + 1]}
        assert few(name, 16, arch, one, N).tobytes() == whole[..., row : row + 1, :].tobytes()


SMALLEST = {"BM": 64, "BN": 128, "PART": 64, "AHEAD": 2, "LATE": 1, "GROUP": 8}
CHOICES = [
    {"BM": 64, "BN": 192, "PART": 64, "AHEAD": 1, "LATE": 0, "GROUP": 8},
    {"BM": 64, "BN": 128, "PART": 64, "AHEAD": 2, "LATE": 0, "GROUP": 8},
    {"BM": 128, "BN": 128, "PART": 64, "AHEAD": 1, "LATE": 0, "GROUP": 16},
    {"BM": 128, "BN": 192, "PART": 64, "AHEAD": 1, "LATE": 0, "GROUP": 8},
    {"BM": 192, "BN": 128, "PART": 64, "AHEAD": 1, "LATE": 0, "GROUP": 8},
]


@pytest.mark.parametrize("choice", first(2, CHOICES))
def test_tiles_of_eight_bit_activations_have_the_same_bits(choice: dict[str, int]) -> None:
    """Blocks ahead, scales of parts and sums that are added late shape no sum: of an odd number of blocks of the depth."""
    rng = np.random.default_rng(3)
    t = {"a": numbers(rng, ROWS, 384).astype(E4M3), **codes(rng, "fp8", N, 384)}
    t["a_scales"] = np.exp2(rng.integers(-9, 0, (3, ROWS))).astype(np.float32)
    found = emulated("matmul_fp8", "sm_90a", t, "out", (ROWS, N), BF16, **choice)
    assert found.tobytes() == emulated("matmul_fp8", "sm_90a", t, "out", (ROWS, N), BF16, **SMALLEST).tobytes()
    moved = {**t, "a": t["a"][::-1].copy(), "a_scales": t["a_scales"][:, ::-1].copy()}
    assert emulated("matmul_fp8", "sm_90a", moved, "out", (ROWS, N), BF16, **choice)[::-1].tobytes() == found.tobytes()


EXPERTS = [
    (kernel, form, height)
    for form, height in (("int4", 16), ("16bit", 64), ("16bit", 16), ("fp8", 16))
    for kernel in ("experts_matmul", "experts_matmul_silu_mul")
]


@pytest.mark.parametrize(("kernel", "form", "height"), first(6, EXPERTS))
def test_a_row_has_the_same_bits_in_any_slot_among_those_of_its_expert(kernel: str, form: str, height: int) -> None:
    """In tiles of other numbers, in other rows, with others and none next to it, with and without a tile of nobody."""
    rng, double = np.random.default_rng(5), 2 if "silu" in kernel else 1
    inner = 136 if form == "16bit" else 768 if kernel == "experts_matmul" else 512
    name = kernel + ("_few" if height == 16 else "") + ("" if form == "16bit" else f"_{form}")
    weights = codes(rng, form, 3, double * N, inner)
    if form == "16bit" and double == 2:
        weights["b"] = weights["b"].reshape(3, 2, N, inner)
    mine = numbers(rng, 2, inner)

    def found(tiles: list[int], slots: list[int]) -> Array:
        a = numbers(rng, len(tiles) * height, inner)
        a[slots] = mine
        t = {"a": a, "tiles": np.array(tiles, np.int32), **weights}
        wanted: dict[str, Any] = {"BM": height, **({"F": "bf16"} if form == "int4" else {})}
        out = emulated(name, "sm_90a", t, "out", (len(a), N), BF16, **wanted)
        assert (out[: height * (len(tiles) - tiles.count(3))] != 0).any(axis=1).all()
        return out[slots]

    one = found([1, 3], [0, height - 1])
    assert one.tobytes() == found([0, 1, 1, 2], [height + 3, 2 * height + 5]).tobytes()
    assert one.tobytes() == found([1, 1], [height + 9, 2]).tobytes()
