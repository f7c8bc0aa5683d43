"""A tiny model whose weights are quantised runs as the same model with those weights dequantised beforehand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from checkpoints import joined
from layouts import Arrays, awq, packed
from numpy.typing import NDArray

from engine.api import Engine
from engine.checkpoint.weights import WeightPlan
from engine.errors import ModelError
from engine.models.families import read_config
from engine.tools.tiny import write_tiny_model

BF16 = np.dtype(ml_dtypes.bfloat16)
GROUP = 32
IDS = (3, 141, 59, 26, 5)

FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}
W4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP}
PACKED = {
    "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": W4}},
}  # fmt: skip

Quantiser = Callable[[str, NDArray[np.float32]], tuple[Arrays, NDArray[np.float32]]]
"""From a module's name and its weight: the tensors of the published layout, and the values that they stand for."""


def to_fp8(module: str, weight: NDArray[np.float32]) -> tuple[Arrays, NDArray[np.float32]]:
    blocks = np.zeros((-(-weight.shape[0] // 128), -(-weight.shape[1] // 128)), BF16)
    values, codes = np.empty_like(weight), np.empty(weight.shape, ml_dtypes.float8_e4m3fn)
    for (i, j), _ in np.ndenumerate(blocks):
        block = np.s_[128 * i : 128 * (i + 1), 128 * j : 128 * (j + 1)]
        blocks[i, j] = np.abs(weight[block]).max() / 440
        codes[block] = (weight[block] / np.float32(blocks[i, j])).astype(codes.dtype)
        values[block] = codes[block].astype(np.float32) * np.float32(blocks[i, j])
    return {f"{module}.weight": codes, f"{module}.weight_scale_inv": blocks}, values


def to_awq(module: str, weight: NDArray[np.float32]) -> tuple[Arrays, NDArray[np.float32]]:
    codes, zeros, scales, values = groups(weight)
    return awq(codes.T, zeros.T, np.ascontiguousarray(scales.T), module), values


def to_packed(module: str, weight: NDArray[np.float32]) -> tuple[Arrays, NDArray[np.float32]]:
    codes, _, scales, _ = groups(weight)
    values = (codes - 8).astype(np.float32) * np.repeat(scales.astype(np.float32), GROUP, 1)
    return packed(4, codes, scales, module), values


def groups(weight: NDArray[np.float32]) -> tuple[NDArray[Any], ...]:
    """Codes, zero points and bf16 scales by rounding to the nearest in each group, and the values."""
    grouped = weight.reshape(len(weight), -1, GROUP)
    scales = (np.ptp(grouped, axis=2) / 15).astype(BF16)
    step = scales.astype(np.float32)[..., None]
    zeros = np.clip(np.rint(-grouped.min(2, keepdims=True) / step), 0, 15)
    codes = np.clip(np.rint(grouped / step) + zeros, 0, 15)
    values = (codes - zeros).astype(np.float32) * step
    return codes.reshape(weight.shape).astype(int), zeros[..., 0].astype(int), scales, values.reshape(weight.shape)


CASES: dict[str, tuple[dict[str, Any], Quantiser]] = {
    "fp8": (FP8, to_fp8), "awq": (AWQ, to_awq), "packed": (PACKED, to_packed),
}  # fmt: skip


@pytest.fixture(params=CASES)
def folders(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """A tiny model with quantised projections, and the same with their values in bf16."""
    config, quantiser = CASES[request.param]
    quantised, plain = tmp_path / "quantised", tmp_path / "plain"
    write_tiny_model(quantised)
    write_tiny_model(plain)
    arrays = safetensors.numpy.load_file(plain / "model.safetensors")
    stored: Arrays = {}
    for name, array in list(arrays.items()):
        if name.endswith("_proj.weight"):
            tensors, values = quantiser(name.removesuffix(".weight"), array.astype(np.float32))
            arrays[name] = values.astype(BF16)
            stored |= tensors
        else:
            stored[name] = array
    layer = "model.layers.0.self_attn"
    stored |= {f"{layer}.k_scale": np.ones(1, np.float32), f"{layer}.v_scale": np.ones(1, np.float32)}
    for folder, contents in ((quantised, stored), (plain, arrays)):
        contiguous = {name: np.ascontiguousarray(array) for name, array in contents.items()}
        (folder / "model.safetensors").write_bytes(safetensors.numpy.save(contiguous, {"format": "pt"}))
    path = quantised / "config.json"
    keys = json.loads(path.read_text()) | {"quantization_config": config, "torch_dtype": "float16"}  # as Qwen3-*-AWQ says
    path.write_text(json.dumps(keys))
    return quantised, plain


def test_weights_are_those_of_the_dequantised_folder(folders: tuple[Path, Path]) -> None:
    quantised, plain = (WeightPlan.for_model(read_config(folder), folder) for folder in folders)
    assert quantised.dtype == plain.dtype == "bf16"
    assert len(quantised.quantised) == 14 and not plain.quantised
    for name in plain.tensor_names:
        assert quantised.tensor(name).tobytes() == plain.tensor(name).tobytes()
    name = next(destination.name for destination in plain.destinations if "gate_up" in destination.name)
    for limit in (2, 100, 1 << 20):
        assert joined(quantised, name, limit) == plain.array(name).tobytes()


def test_logits_are_those_of_the_dequantised_folder(folders: tuple[Path, Path]) -> None:
    found: list[NDArray[np.float32]] = []
    for folder in folders:
        with Engine.from_pretrained(folder, backend="interpreter", max_seq_len=16) as engine:
            found.append(engine.logits(IDS))
    assert found[0].tobytes() == found[1].tobytes() and np.ptp(found[0]) > 0


@pytest.mark.parametrize("folders", ["awq", "packed"], indirect=True)
def test_f16_is_refused_where_a_value_does_not_fit(folders: tuple[Path, Path]) -> None:
    quantised = folders[0]
    arrays = safetensors.numpy.load_file(quantised / "model.safetensors")
    name = next(name for name in arrays if name.endswith(("q_proj.scales", "q_proj.weight_scale")))
    arrays[name][:] = 1e6
    (quantised / "model.safetensors").write_bytes(safetensors.numpy.save(arrays))
    plan = WeightPlan.for_model(read_config(quantised), quantised, "f16", convert=True)
    module = name.rpartition(".")[0]
    with pytest.raises(ModelError, match=r"q_proj\.weight.* holds .*, which f16 cannot hold; ask for the dtype of the file"):
        plan.tensor(f"{module}.weight")


def test_a_scale_without_a_config_is_refused(folders: tuple[Path, Path]) -> None:
    path = folders[0] / "config.json"
    keys = json.loads(path.read_text())
    del keys["quantization_config"]
    path.write_text(json.dumps(keys))
    with pytest.raises(ModelError):
        WeightPlan.for_model(read_config(folders[0]), folders[0], "bf16")
