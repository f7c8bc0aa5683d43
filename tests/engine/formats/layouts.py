"""Writes modules in published layouts, packed from the formats' descriptions and without the engine's code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from engine.checkpoint.shards import open_checkpoint
from engine.formats.quantised import Quantised, quantised_weights
from engine.formats.reading import read_quantization

MODULE = "model.layers.0.self_attn.q_proj"
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)

Arrays = dict[str, NDArray[Any]]


def quantised(folder: Path, config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Quantised]:
    """The quantised weights of a folder that has its safetensors file, with this `quantization_config`."""
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    quantization = read_quantization(folder)
    assert quantization is not None
    return quantised_weights(quantization, shapes.items(), open_checkpoint(folder))


def write(folder: Path, arrays: Arrays) -> None:
    """The one safetensors file of a folder."""
    (folder / "model.safetensors").write_bytes(
        safetensors.numpy.save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    )


def words(fields: NDArray[Any], bits: int) -> NDArray[np.int32]:
    """Fields along the last axis as words, low bits first."""
    per = 32 // bits
    result = np.zeros((*fields.shape[:-1], fields.shape[-1] // per), np.uint32)
    for field in range(per):
        result |= fields[..., field::per].astype(np.uint32) << np.uint32(bits * field)
    return result.view(np.int32)


def awq(codes: NDArray[Any], zeros: NDArray[Any], scales: NDArray[Any], module: str = MODULE) -> Arrays:
    """Codes (K, N), zero points and scales (K / group, N)."""

    def interleaved(fields: NDArray[Any]) -> NDArray[np.int32]:
        return words(fields.reshape(len(fields), -1, 8)[:, :, list(AWQ_ORDER)].reshape(fields.shape), 4)

    return {f"{module}.qweight": interleaved(codes), f"{module}.qzeros": interleaved(zeros), f"{module}.scales": scales}


def gptq(
    bits: int, codes: NDArray[Any], zeros: NDArray[Any], scales: NDArray[Any], g_idx: NDArray[Any], module: str = MODULE
) -> Arrays:
    """Codes (K, N), zero points as stored and scales (K / group, N), groups (K)."""
    return {
        f"{module}.qweight": np.ascontiguousarray(words(np.ascontiguousarray(codes.T), bits).T),
        f"{module}.qzeros": words(zeros, bits), f"{module}.scales": scales, f"{module}.g_idx": g_idx.astype(np.int32),
    }  # fmt: skip


def packed(bits: int, codes: NDArray[Any], scales: NDArray[Any], module: str = MODULE) -> Arrays:
    """Symmetric `pack-quantized` codes (N, K) plus 2^(bits - 1), and scales (N, K / group)."""
    return {
        f"{module}.weight_packed": words(codes, bits), f"{module}.weight_scale": scales,
        f"{module}.weight_shape": np.array(codes.shape, np.int64),
    }  # fmt: skip
