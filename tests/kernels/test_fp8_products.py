"""Products with weights and activations of eight bits, and the quantisation of activations: inputs that a wrong scale, a lost
sum or a neighbour's row would change. Every tile of sm_90 runs in the emulator, long sums on the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16, float8_e4m3fn

from tests import campaign, shipped
from tests.clean import check_clean
from tests.programs.machines import manifest
from tests.shipped_launches import reference
from tilec.codegen import to_ptx
from tilec.emulator import launch
from tilec.interpreter import run
from tilec.lowering import lower
from tilec.passes.schedule import choose
from tilec.target.schedule import merged
from tilec.target.targets import SM_90A

Array = Any
PRODUCT, GATED = "matmul_fp8", "matmul_silu_mul_fp8"
TILES = [
    (entry.name, constants)
    for entry in shipped.all_entries()
    if entry.name in (PRODUCT, GATED)
    for constants in entry.specialisations()
    if constants["E"] == "bf16"
]
LARGEST = 448.0


def _codes(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Codes of both signs, half of them near the largest."""
    large = random.choice([LARGEST, -LARGEST, 416.0, -416.0], shape)
    return np.where(random.random(shape) < 0.5, large, random.normal(size=shape) * 64).astype(float8_e4m3fn)


def _inputs(name: str, m: int, n: int, k: int, seed: int) -> dict[str, Array]:
    """Scales are powers of two that differ between neighbouring blocks and rows."""
    random, halves = np.random.default_rng(seed), (2,) if name == GATED else ()

    def scales(*shape: int) -> Array:
        return (2.0 ** random.permuted(np.arange(np.prod(shape)) % 13 - 15).reshape(shape)).astype(np.float32)

    return {
        "a": _codes(random, (m, k)), "a_scales": scales(k // 128, m), "b": _codes(random, (*halves, n, k)),
        "b_scales": scales(*halves, n // 128, k // 128), "out": np.full((m, n), np.nan, bfloat16),
    }  # fmt: skip


def _exact(name: str, arrays: dict[str, Array]) -> Array:
    return reference(name)(*(arrays[key] for key in ("a", "a_scales", "b", "b_scales")))


def _interpreted(name: str, arrays: dict[str, Array], **constants: Any) -> Array:
    arrays = {key: array.copy() for key, array in arrays.items()}
    run(shipped.load(name, constants), arrays, {})
    return arrays["out"].astype(np.float64)


def _emulated(name: str, constants: dict[str, Any], arrays: dict[str, Array]) -> Array:
    entry, _ = shipped.specialisation(name, constants, SM_90A)
    schedule = choose(shipped.load(name, constants), SM_90A, merged(entry.overrides(constants), SM_90A))
    prepared = shipped.prepared(name, SM_90A, constants)
    lowered = lower(prepared, SM_90A, min_blocks=schedule.blocks)
    (m, k), n = arrays["a"].shape, arrays["out"].shape[1]
    env = {"M": m, "I" if name == GATED else "N": n, "K": k}
    given = {key: array.copy() for key, array in arrays.items()}
    report = launch.emulate(to_ptx(lowered.mlir, SM_90A), manifest(prepared, lowered, SM_90A, schedule), given, env)
    check_clean(report)
    return report.tensors["out"].reshape(m, n).astype(np.float64)


def _assert_rounded(found: Array, exact: Array, relative: float = 2.0**-8) -> None:
    """Within the rounding to bf16, and a little for sums whose terms cancel."""
    assert np.isfinite(found).all()
    assert (np.abs(found - exact) <= relative * np.abs(exact) + 2.0**-12 * np.abs(exact).max()).all()


@pytest.mark.parametrize(("name", "constants"), TILES, ids=[f"{name}-{c['BM']}x{c['BN']}-{c['AHEAD']}" for name, c in TILES])
@pytest.mark.parametrize(("m", "n", "k"), campaign.chosen([(70, 256, 384), (140, 384, 640)], lambda size: size[0] == 70))
def test_every_tile_multiplies_each_block_by_its_own_scales(
    name: str, constants: dict[str, Any], m: int, n: int, k: int
) -> None:
    """Partial tiles, and a number of blocks that AHEAD does not divide."""
    arrays = _inputs(name, m, n, k, seed=m)
    _assert_rounded(_emulated(name, constants, arrays), _exact(name, arrays), 2.0**-7 if name == GATED else 2.0**-8)


def test_long_sums_of_positive_numbers_keep_the_accuracy_of_f32() -> None:
    """200 blocks, in each of which all terms are positive: a sum in fewer bits than f32 would stop growing."""
    random, m, n, k = np.random.default_rng(0), 8, 128, 25600
    arrays = _inputs(PRODUCT, m, n, k, seed=1)
    arrays["a"] = (256 + 192 * random.random((m, k))).astype(float8_e4m3fn)
    arrays["b"] = (256 + 192 * random.random((n, k))).astype(float8_e4m3fn)
    arrays["a_scales"][:], arrays["b_scales"][:] = 1 / 512, 1 / 512
    exact = _exact(PRODUCT, arrays)
    for constants in ({"BM": 64, "AHEAD": 2}, {"BM": 128, "BN": 128, "AHEAD": 1}):
        found = _interpreted(PRODUCT, arrays, **constants)
        half = 2.0 ** (np.floor(np.log2(exact)) - 8)  # half a unit in the last place of bf16
        assert (np.abs(found - exact) <= half * (1 + 2.0**-8)).all()


@pytest.mark.parametrize("name", [PRODUCT, GATED])
def test_rows_that_are_zero_or_no_numbers_change_no_others(name: str) -> None:
    arrays = _inputs(name, 70, 128, 384, seed=3)
    before = _interpreted(name, arrays)
    arrays["a"][3] = 0
    arrays["a"][5, 200] = np.nan
    arrays["a_scales"][1, 9] = np.inf
    after = _interpreted(name, arrays)
    assert (after[3] == 0).all() and not np.isfinite(after[[5, 9]]).any()
    others = np.setdiff1d(np.arange(70), [3, 5, 9])
    assert (after[others] == before[others]).all() and np.isfinite(before).all()


def _quantised(x: Array, element: str = "bf16") -> tuple[Array, Array]:
    rows, columns = x.shape
    arrays = {"x": x, "codes": np.zeros((rows, columns), float8_e4m3fn), "scales": np.zeros((columns // 128, rows), np.float32)}
    with np.errstate(invalid="ignore"):
        run(shipped.load("quantise_rows", {"E": element}), arrays, {})
    return arrays["codes"].astype(np.float64), arrays["scales"].astype(np.float64)


def test_codes_times_scales_are_near_what_was_quantised() -> None:
    """Within half a step of the codes, of numbers of all sizes; the largest of each block has the largest code."""
    random = np.random.default_rng(4)
    x = (random.normal(size=(21, 384)) * 2.0 ** random.integers(-20, 20, (21, 1))).astype(bfloat16)
    codes, scales = _quantised(x)
    wide, spread = x.astype(np.float64), scales.T.repeat(128, axis=1)
    step = np.maximum(np.abs(wide) * 2.0**-4, spread * 2.0**-10)
    assert (np.abs(codes * spread - wide) <= step * (1 + 2.0**-20)).all()
    assert (np.abs(codes).reshape(21, 3, 128).max(axis=2) == LARGEST).all()


def test_blocks_that_are_zero_tiny_or_no_numbers() -> None:
    """No quotient of zeros is a NaN, and a NaN or an infinity stays in its block of its row; all is as the reference says."""
    x = np.random.default_rng(5).normal(size=(9, 384)).astype(bfloat16)
    whole = _quantised(x)
    x[0], x[1, :128], x[2, 130], x[3, 300], x[4] = 0, 1e-30, np.nan, np.inf, -0.0
    codes, scales = _quantised(x)
    assert (codes[[0, 4]] == 0).all() and (codes[1, :128] == 0).all()
    assert (scales[:, [0, 4]] == np.float32(1e-10) / np.float32(448)).all()
    assert np.isnan(codes[2, 130]) and np.isfinite(scales[1, 2]) and np.isinf(scales[2, 3])
    assert np.isnan(codes[3, 300]) and (np.delete(codes[3, 256:], 44) == 0).all()
    changed = np.zeros(codes.shape, bool)
    changed[[0, 4]] = changed[1, :128] = changed[2, 128:256] = changed[3, 256:] = True
    exact = reference("quantise_rows")(x)
    np.testing.assert_array_equal(codes, exact[0])
    np.testing.assert_array_equal(scales, exact[1])
    assert (codes[~changed] == whole[0][~changed]).all()
    assert (scales.T[~changed[:, ::128]] == whole[1].T[~changed[:, ::128]]).all()


def test_a_product_of_quantised_numbers_is_near_that_of_the_numbers() -> None:
    """Rows and columns of quantised activations meet their own scales: the layouts of both kernels agree."""
    random = np.random.default_rng(6)
    x, w = random.normal(size=(37, 384)).astype(bfloat16), random.normal(size=(128, 384))
    x[11] *= 1000
    codes, scales = _quantised(x)
    arrays = {
        "a": codes.astype(float8_e4m3fn), "a_scales": scales.astype(np.float32), "b": (w * 64).astype(float8_e4m3fn),
        "b_scales": np.full((1, 3), 1 / 64, np.float32), "out": np.zeros((37, 128), bfloat16),
    }  # fmt: skip
    found, exact = _interpreted(PRODUCT, arrays), x.astype(np.float64) @ w.T
    errors = np.linalg.norm(found - exact, axis=1) / np.linalg.norm(exact, axis=1)
    assert errors.max() < 0.06
