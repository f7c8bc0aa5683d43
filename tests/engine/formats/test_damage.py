"""Wrong configs and damaged modules: one line that names file, tensor or key, place and fix; never a NaN that goes unsaid."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from layouts import MODULE, Arrays, awq, gptq, packed, quantised, write

from engine.errors import ModelError
from engine.formats.codes import E2M1, E4M3
from engine.formats.dequantise import dequantise

BF16 = np.dtype(ml_dtypes.bfloat16)
N, K, GROUP = 16, 64, 32
WEIGHT = f"{MODULE}.weight"

FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3", "activation_scheme": "dynamic"}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": True, "desc_act": False, "checkpoint_format": "gptq"}
W4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP}
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4"}


def compressed(weights: dict[str, Any], kind: str = "pack-quantized", **keys: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights}
    return {"quant_method": "compressed-tensors", "format": kind, "config_groups": {"group_0": group}, **keys}


def module(config: dict[str, Any], seed: int = 0, shape: tuple[int, int] = (N, K)) -> Arrays:
    """A valid module for one of the configs above."""
    random = np.random.default_rng(seed)
    n, k = shape
    codes = random.integers(0, 16, (n, k))
    scales = random.uniform(0.001, 0.1, (n, k // GROUP)).astype(np.float32)
    match config["quant_method"]:
        case "fp8":
            weight = random.integers(0, 0x7F, (n, k)).astype(np.uint8).view(ml_dtypes.float8_e4m3fn)
            return {WEIGHT: weight, f"{MODULE}.weight_scale_inv": np.full((-(-n // 128), -(-k // 128)), 0.01, np.float32)}
        case "awq":
            return awq(codes.T, random.integers(0, 16, (k // GROUP, n)), scales.T.astype(BF16))
        case "gptq":
            zeros = np.full((k // GROUP, n), 7)
            return gptq(4, codes.T, zeros, scales.T.astype(np.float16), np.arange(k) // GROUP)
        case "modelopt":
            nibbles = random.integers(0, 256, (n, k // 2)).astype(np.uint8)
            groups = random.integers(0, 0x7F, (n, k // 16)).astype(np.uint8).view(ml_dtypes.float8_e4m3fn)
            return {WEIGHT: nibbles, f"{MODULE}.weight_scale": groups, f"{MODULE}.weight_scale_2": np.array(1e-3, np.float32)}
        case _:
            return packed(4, codes, scales.astype(BF16))


CONFIGS = {"fp8": FP8, "awq": AWQ, "gptq": GPTQ, "compressed-tensors": compressed(W4), "modelopt": NVFP4}


def refusal(folder: Path, config: dict[str, Any], arrays: Arrays, shape: tuple[int, int] = (N, K)) -> str:
    """The one-line error of reading a module."""
    write(folder, arrays)
    with pytest.raises(ModelError) as caught:
        quantised(folder, config, {WEIGHT: shape})[WEIGHT].form()
    line = str(caught.value)
    assert line.isprintable() and line.startswith(str(folder)) and caught.value.fix
    return line


@pytest.mark.parametrize("method", CONFIGS)
def test_valid_modules_are_read(method: str, tmp_path: Path) -> None:
    write(tmp_path, module(CONFIGS[method]))
    values = dequantise(quantised(tmp_path, CONFIGS[method], {WEIGHT: (N, K)})[WEIGHT].form())
    assert values.shape == (N, K) and np.isfinite(values).all() and values.any()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"quant_method": "bitsandbytes"}, '`quantization_config.quant_method` is "bitsandbytes", and must be "fp8" or "awq"'),
        ({}, "`quantization_config.quant_method` is absent"),
        (FP8 | {"weight_block_size": [64, 64]}, "config.weight_block_size` is a list of 2 entries, and must be [128, 128]"),
        (FP8 | {"weight_block_size": None}, "weight_block_size"),
        (FP8 | {"scale_fmt": "ue8m0"}, '`quantization_config.scale_fmt` is "ue8m0", and must be "float"'),
        (FP8 | {"fmt": "e5m2"}, '"e5m2", and must be "e4m3"'),
        (FP8 | {"rotation": "hadamard"}, '`quantization_config.rotation` is "hadamard", and must be absent'),
        (FP8 | {"modules_to_not_convert": [1]}, "_not_convert` is a list of 1 entries, and must be a list of strings"),
        (AWQ | {"bits": 3}, "`quantization_config.bits` is 3, and must be 4"),
        (AWQ | {"bits": True}, "`quantization_config.bits` is true, and must be 4"),
        (AWQ | {"version": "gemv"}, '`quantization_config.version` is "gemv", and must be "gemm"'),
        (AWQ | {"zero_point": False}, "`quantization_config.zero_point` is false, and must be true"),
        (AWQ | {"group_size": 20}, "group_size` is 20, and must be a multiple of 8, or -1"),
        (GPTQ | {"bits": 2}, "`quantization_config.bits` is 2, and must be 4 or 8"),
        (GPTQ | {"checkpoint_format": "marlin"}, '"marlin", and must be "gptq" or "gptq_v2" or "gemm"'),
        (GPTQ | {"dynamic": {"+:.*down.*": {"bits": 8}}}, "`quantization_config.dynamic.+:.*down.*` is an object of 1 entries"),
        (compressed(W4, "marlin-24"), '`quantization_config.format` is "marlin-24"'),
        (compressed(W4 | {"num_bits": 3}), "config_groups.group_0.weights.num_bits` is 3, and must be 4 or 8"),
        (compressed(W4 | {"dynamic": True}), "weights.dynamic` is true, and must be false"),
        (compressed(W4, ignore=["re:(a+)+b"]), "`quantization_config.ignore`"),
        (compressed(W4, ignore=["re:" + ".*" * 5]), "at most 200 characters and 4 repetitions"),
        (compressed(W4, ignore=["re:["]), "valid regular expressions"),
        (compressed(W4, sparsity_config={"format": "sparse-24-bitmask"}), "sparsity_config.format"),
        (NVFP4 | {"quant_algo": "FP8"}, '`quantization_config.quant_algo` is "FP8"'),
    ],
)  # fmt: skip
def test_what_a_config_asks_and_cannot_have(config: dict[str, Any], expected: str, tmp_path: Path) -> None:
    assert expected in refusal(tmp_path, config, module(FP8))


def nan_code(arrays: Arrays) -> None:
    arrays[WEIGHT].view(np.uint8)[3, 5] = 0xFF


def scale(value: float) -> Callable[[Arrays], None]:
    def change(arrays: Arrays) -> None:
        name = next(name for name in arrays if name.endswith(("scales", "weight_scale", "weight_scale_inv")))
        arrays[name] = arrays[name].astype(BF16 if value > 1e30 else arrays[name].dtype)
        arrays[name][0, 0] = value

    return change


def put(suffix: str, array: Any) -> Callable[[Arrays], None]:
    return lambda arrays: arrays.update({f"{MODULE}.{suffix}": np.asarray(array)})


def drop(suffix: str) -> Callable[[Arrays], None]:
    return lambda arrays: arrays.pop(f"{MODULE}.{suffix}") is None or None


G_IDX = np.arange(K, dtype=np.int32) // GROUP


@pytest.mark.parametrize(
    ("method", "change", "expected"),
    [
        ("fp8", nan_code, [f'"{WEIGHT}"', "holds NaN (code 0xff) at [3, 5]"]),
        ("fp8", scale(np.nan), ["weight_scale_inv", "holds nan at [0, 0]"]),
        ("fp8", scale(np.inf), ["weight_scale_inv", "holds inf at [0, 0]"]),
        ("fp8", scale(3e38), ["weight_scale_inv", "at [0, 0], and its products with codes up to 448 must be finite"]),
        ("fp8", put("weight_scale_inv", np.ones((2, 1), np.float32)), ["has shape [2, 1], and must have [1, 1]", "128x128"]),
        ("fp8", put("weight_scale_inv", np.ones((1, 1), np.uint8)), ["is U8, and must be BF16 or F16 or F32"]),
        ("fp8", drop("weight_scale_inv"), [f'has no tensor "{MODULE}.weight_scale_inv"']),
        ("fp8", drop("weight"), [f'has no tensor "{WEIGHT}"']),
        ("awq", scale(np.nan), ["scales", "holds nan"]),
        ("awq", put("scales", np.ones((N, K // GROUP), BF16)), ["has shape [16, 2], transposed, and must have [2, 16]"]),
        ("awq", put("qzeros", np.ones((K // GROUP, N), np.int32)), ["qzeros", "has shape [2, 16], and must have [2, 2]"]),
        ("awq", drop("qzeros"), ["has no tensor"]),
        ("gptq", put("g_idx", G_IDX.astype(np.int64)), ["g_idx", "is I64, and must be I32"]),
        ("gptq", put("g_idx", np.where(np.arange(K) == 9, 2, G_IDX).astype(np.int32)), ["holds 2 at [9]", "from 0 to 1"]),
        ("gptq", put("g_idx", np.where(np.arange(K) == 9, -1, G_IDX).astype(np.int32)), ["holds -1 at [9]"]),
        ("gptq", put("g_idx", np.where(np.arange(K) == 9, 1, G_IDX).astype(np.int32)), ["gives group 0 31 columns"]),
        ("gptq", put("qzeros", np.full((2, 2), 0x77777677, np.int32)), ["holds the zero point 6 at [0, 2]", "`sym`"]),
        ("compressed-tensors", put("weight_shape", np.array([N, 32])), ["weight_shape", "is [16, 32], and config.json asks"]),
        ("compressed-tensors", put("weight_scale", np.ones((2, N), BF16)), ["weight_scale", "transposed"]),
        ("compressed-tensors", put("weight_g_idx", np.full(K, 7, np.int32)), ["weight_g_idx", "holds 7 at [0]"]),
        ("modelopt", put("weight_scale_2", np.float32(np.inf)), ["weight_scale_2", "is inf, and must be finite"]),
        ("modelopt", put("weight_scale_2", np.float32(3e37)), ["weight_scale_2", "largest weight would not be finite"]),
        ("modelopt", put("weight_scale", np.full((N, 4), np.nan, ml_dtypes.float8_e4m3fn)), ["holds NaN", "at [0, 0]"]),
    ],
)  # fmt: skip
def test_damage_is_named(method: str, change: Callable[[Arrays], None], expected: list[str], tmp_path: Path) -> None:
    arrays = {name: array.copy() for name, array in module(CONFIGS[method]).items()}
    change(arrays)
    line = refusal(tmp_path, CONFIGS[method], arrays)
    assert all(text in line for text in expected), line


@pytest.mark.parametrize("method", ["awq", "gptq", "compressed-tensors"])
def test_a_group_that_was_cut_is_named(method: str, tmp_path: Path) -> None:
    arrays = module(CONFIGS[method])
    columns = K - 8
    for suffix, axis, per in (("qweight", 0, 1 if method == "awq" else 8), ("weight_packed", 1, 8), ("g_idx", 0, 1)):
        name = f"{MODULE}.{suffix}"
        if name in arrays:
            arrays[name] = np.take(arrays[name], range(columns // per), axis)
    if method == "compressed-tensors":
        arrays[f"{MODULE}.weight_shape"] = np.array([N, columns])
    line = refusal(tmp_path, CONFIGS[method], arrays, (N, columns))
    assert f"groups of {GROUP} columns, and {columns} columns cut one: the weight was split inside a group" in line


def test_modules_that_stay_in_16_bits_are_not_quantised(tmp_path: Path) -> None:
    for skipped in (MODULE, "re:.*q_proj$"):
        line = refusal(tmp_path, compressed(W4, ignore=[skipped]), module(compressed(W4)))
        assert "`quantization_config` leaves that module in 16 bits" in line


@pytest.mark.parametrize("value", [0.0, 1e-23])
@pytest.mark.parametrize("method", CONFIGS)
def test_zero_and_tiny_scales_are_numbers(method: str, value: float, tmp_path: Path) -> None:
    arrays = {name: array.copy() for name, array in module(CONFIGS[method]).items()}
    if method != "modelopt":
        scale(value)(arrays)
    else:
        arrays[f"{MODULE}.weight_scale_2"] = np.float32(value)
    write(tmp_path, arrays)
    values = dequantise(quantised(tmp_path, CONFIGS[method], {WEIGHT: (N, K)})[WEIGHT].form())
    assert np.isfinite(values).all()
    small = np.abs(values[:1, :GROUP] if method != "modelopt" else values)
    assert small.max() <= value * 2700 and (small.any() or value == 0 or method == "gptq")  # f16 cannot hold 1e-23


def test_tables_of_codes_are_those_of_ml_dtypes() -> None:
    codes = np.arange(256, dtype=np.uint8)
    expected = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert (np.isnan(E4M3) == np.isnan(expected)).all() and np.isnan(expected).sum() == 2
    finite = ~np.isnan(expected)
    assert E4M3[finite].tobytes() == expected[finite].tobytes()
    assert E2M1.tobytes() == codes[:16].view(ml_dtypes.float4_e2m1fn).astype(np.float32).tobytes()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_is_one_line_or_finite_numbers(data: st.DataObject, tmp_path: Path) -> None:
    """Random bytes in random tensors, and random shapes of the weight: a `ModelError`, or values that are all finite."""
    method = data.draw(st.sampled_from(sorted(CONFIGS)))
    arrays = {name: np.array(array) for name, array in module(CONFIGS[method], data.draw(st.integers(0, 9))).items()}
    name = data.draw(st.sampled_from(sorted(arrays)))
    flat = np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).copy()
    for _ in range(data.draw(st.integers(0, 8))):
        flat[data.draw(st.integers(0, flat.size - 1))] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF, 0x7C]))
    arrays[name] = flat.view(arrays[name].dtype).reshape(arrays[name].shape)
    if data.draw(st.booleans()):
        arrays[name] = arrays[name].T
    shape = data.draw(st.sampled_from([(N, K), (K, N), (N, K + 8), (N + 4, K), (1, 1)]))
    write(tmp_path, arrays)
    try:
        values = dequantise(quantised(tmp_path, CONFIGS[method], {WEIGHT: shape})[WEIGHT].form())
    except ModelError as error:
        assert str(error).isprintable() and error.where and error.fix
    else:
        assert values.shape == shape and np.isfinite(values).all()
