"""Kernels of a cache of codes, attacked: every kind of row, every code, slots that are not theirs, on the interpreter."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests import shipped
from tests.shipped_launches import Array, expected, launch_values, make_arrays
from tilec.interpreter import run

STORES: dict[str, dict[str, Any]] = {
    "qk_norm_rope_kv_c8": {"T": 3, "HEADS": 6, "HQ": 2, "HKV": 2, "P": 9, "S": 11, "eps": 1e-6, "GROUP": 1},
    "rope_kv_c8": {"T": 3, "HEADS": 24, "HQ": 8, "HKV": 8, "R": 9, "S": 11, "GROUP": 8},
    "decode_merge_kv_c8": {"B": 3, "HKV": 2, "G": 2, "S": 11, "R": 9, "eps": 1e-6},
    "rope_merge_kv_c8": {"B": 3, "HKV": 2, "G": 4, "S": 11, "R": 9},
    "rotary_decode_attention_kv_c8": {"B": 3, "HKV": 2, "G": 4, "S": 128, "R": 9, "eps": 1e-6, "scale": 0.09},
    "rope_decode_attention_kv_c8": {"B": 3, "HKV": 2, "G": 4, "S": 128, "R": 9, "scale": 0.09},
}
CACHES = ("k_cache", "k_scales", "v_cache", "v_scales")


def launched(
    name: str, size: dict[str, Any], change: Any = None
) -> tuple[dict[str, Array], dict[str, Array], dict[str, Array]]:
    """The arrays before and after a launch, and the reference's."""
    function = shipped.load(name, {key: value for key, value in size.items() if key in ("E", "G", "GROUP", "BN")})
    env = launch_values(function, size)
    arrays = make_arrays(function, env)
    if change is not None:
        change(arrays)
    before = {key: value.copy() for key, value in arrays.items()}
    with np.errstate(invalid="ignore", over="ignore"):
        wanted = expected(function, before, env)
    scalars = {p.name: env[p.name] for p in function.parameters if p.access is None}
    run(function, arrays, scalars)
    return before, arrays, wanted


def slots_of(arrays: dict[str, Array]) -> Array:
    return arrays["slots"] if "slots" in arrays else arrays["lengths"] - 1


def is_batch(name: str) -> bool:
    return name not in ("qk_norm_rope_kv_c8", "rope_kv_c8")


def new_rows(name: str, array: Array, slots: Array) -> Array:
    return array[np.arange(len(slots)), slots] if is_batch(name) else array[slots]


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("name", STORES)
def test_a_store_writes_the_codes_of_the_definition_and_no_other_slot(name: str, dtype: str) -> None:
    before, found, wanted = launched(name, STORES[name] | {"E": dtype})
    slots = slots_of(before)
    for cache in CACHES:
        others = np.ones(found[cache].shape, bool)
        if is_batch(name):
            others[np.arange(len(slots)), slots] = False
        else:
            others[slots] = False
        assert found[cache][others].tobytes() == before[cache][others].tobytes()
        mine = new_rows(name, found[cache], slots).astype(np.float64)
        exact = new_rows(name, wanted[cache], slots)
        if cache == "v_cache" or cache == "v_scales":
            assert (mine == exact).all()  # rows of values are exact numbers
        elif cache == "k_scales":
            assert np.allclose(mine, exact, rtol=1e-6)
        else:  # a quotient at the middle of two codes may go either way
            assert (mine == exact).mean() > 0.995 and np.allclose(mine, exact, rtol=0.13, atol=2.0**-9)


@pytest.mark.parametrize("name", STORES)
def test_rows_of_zeros_infinities_and_nan(name: str) -> None:
    size: dict[str, Any] = STORES[name] | {"E": "bf16"}

    def change(arrays: dict[str, Array]) -> None:
        values = arrays["qkv"][:, -size["HKV"] :]
        values[0] = 0
        values[1, :, 5] = np.inf
        values[2, :, 7] = np.nan
        for cache in ("k_cache", "v_cache"):  # what attention reads besides is finite
            arrays[cache][...] = 1

    before, found, _ = launched(name, size, change)
    slots = slots_of(before)
    codes, scales = (new_rows(name, found[cache], slots).astype(np.float32) for cache in ("v_cache", "v_scales"))
    assert not codes[0].any() and (scales[0] > 0).all() and np.isfinite(scales[0]).all()
    assert np.isinf(scales[1]).all() and np.isnan(codes[1, :, 5]).all() and not np.delete(codes[1], 5, axis=1).any()
    assert np.isfinite(scales[2]).all() and np.isnan(codes[2, :, 7]).all()
    rest = np.delete(codes[2], 7, axis=1)
    assert np.isfinite(rest).all() and (np.abs(rest).max(axis=1) == 448).all()
    if "out" in found and "decode_attention" in name:
        out = found["out"].astype(np.float32)
        assert np.isfinite(out[0]).all() and np.isnan(out[1]).any() and np.isnan(out[2]).any()


@pytest.mark.parametrize("factor", [1e-30, 2.0**-126, 1e-20, 1.0, 1e20, 3e38])
def test_rows_of_any_magnitude_keep_three_bits(factor: float) -> None:
    size = STORES["rope_kv_c8"] | {"E": "bf16"}

    def change(arrays: dict[str, Array]) -> None:
        values = arrays["qkv"][:, -8:].astype(np.float64)
        arrays["qkv"][:, -8:] = (values / np.abs(values).max() * factor).astype(ml_dtypes.bfloat16)

    before, found, _ = launched("rope_kv_c8", size, change)
    slots, given = slots_of(before), before["qkv"][:, -8:].astype(np.float64)
    codes, scales = found["v_cache"][slots].astype(np.float64), found["v_scales"][slots].astype(np.float64)
    decoded = codes * scales[..., None]
    least = np.maximum(np.abs(given).max(axis=-1, keepdims=True), 1e-30) / 448 * 2.0**-9
    assert (np.abs(decoded - given) <= np.maximum(np.abs(given) / 16, least) * 1.001).all()


@pytest.mark.parametrize("name", ["rotary_decode_attention_c8", "rope_decode_attention_kv_c8"])
def test_slots_past_the_end_change_nothing(name: str) -> None:
    size: dict[str, Any] = {"B": 2, "HKV": 2, "G": 4, "S": 256, "P": 2, "R": 50, "eps": 1e-6, "scale": 0.09, "E": "bf16"}

    def change(arrays: dict[str, Array]) -> None:
        for cache in CACHES:
            arrays[cache][0, 40:] = 300 if cache.endswith("cache") else 1e30

    _, plain, wanted = launched(name, size)
    _, found, _ = launched(name, size, change)
    written = [key for key in wanted if key not in CACHES]
    assert written and all(plain[key].tobytes() == found[key].tobytes() for key in written)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_every_code_is_exact_in_16_bits(dtype: str) -> None:
    def change(arrays: dict[str, Array]) -> None:
        arrays["cache"].reshape(-1)[:256] = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn)
        arrays["scales"][...] = 0.5

    before, found, _ = launched("dequantise_c8", {"S": 16, "HKV": 8, "filled": 3, "E": dtype}, change)
    wanted = before["cache"][:3].astype(np.float32) * np.float32(0.5)
    assert np.array_equal(found["out"][:3].astype(np.float32), wanted, equal_nan=True)
    assert found["out"][8:].tobytes() == before["out"][8:].tobytes()


@pytest.mark.parametrize("filled", [-5, 0, 16])
def test_no_more_than_the_filled_slots_are_written(filled: int) -> None:
    before, found, wanted = launched("dequantise_c8", {"S": 16, "HKV": 8, "filled": filled, "E": "f16"})
    assert (found["out"].tobytes() == before["out"].tobytes()) == (filled <= 0)
    assert np.allclose(found["out"].astype(np.float64), wanted["out"], rtol=2.0**-10, atol=2.0**-24)
