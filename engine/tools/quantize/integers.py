"""Symmetric integer codes with a scale for each group of columns: what the formats `int4` and `int8` share.

Codes of `bits` bits are from -2^(bits - 1) to 2^(bits - 1) - 1. A group whose largest magnitude is m gets the scale
`m / (2^(bits - 1) - 1/2) * ratio`, rounded up in the weight's dtype. With a ratio of 1 no weight is further than half a scale
from its value. Groups are the last axis of (N, G, K / G) arrays in f32; scales are (N, G).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from engine.tools.quantize.rounding import SMALLEST_SCALE, Arrays, Strip


class IntegerFormat(ABC):
    """A format of such codes (`rounding.Format`): what differs between them is how scales are chosen and codes are packed.
    `gptq` chooses codes itself."""

    __slots__ = ()
    bits: ClassVar[int]
    """Bits of a code."""

    @property
    def height(self) -> int:
        """Rows of a strip: any number is whole."""
        return 8

    @abstractmethod
    def problem(self, shape: tuple[int, int]) -> tuple[str, str] | None:
        """Why a weight of this shape cannot be stored, and what to do instead; None if it can."""

    @abstractmethod
    def columns(self, width: int) -> int:
        """Columns that share a scale in a weight of `width` columns."""

    @abstractmethod
    def scales(self, groups: Strip, dtype: np.dtype[Any]) -> NDArray[Any]:
        """The scales of groups, in `dtype`."""

    @abstractmethod
    def fields(self, codes: NDArray[np.uint8]) -> NDArray[np.int32]:
        """Words of codes (N, K), to each of which half of their range was added."""

    def stored(self, shape: tuple[int, int], dtype: np.dtype[Any]) -> Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """`weight_packed` (N, words), `weight_scale` (N, groups) in the dtype of the weight, `weight_shape` (2)."""
        rows, columns = shape
        return {
            "weight_packed": (np.dtype(np.int32), (rows, columns * self.bits // 32)),
            "weight_scale": (dtype, (rows, columns // self.columns(columns))), "weight_shape": (np.dtype(np.int64), (2,)),
        }  # fmt: skip

    def packed(self, codes: Strip, scales: NDArray[Any]) -> Arrays:
        """The tensors that are split by rows, of codes (N, K) that are whole numbers in f32, and of scales (N, G)."""
        return {"weight_packed": self.fields((codes + (1 << (self.bits - 1))).astype(np.uint8)), "weight_scale": scales}

    def rounded(self, strip: Strip, dtype: np.dtype[Any]) -> tuple[Arrays, Strip]:
        """Packed codes and scales of a strip, and their products in f32."""
        groups = strip.reshape(len(strip), -1, self.columns(strip.shape[1]))
        scales = self.scales(groups, dtype)
        codes = codes_of(groups, scales, self.bits)
        values = codes * scales.astype(np.float32)[:, :, None]
        return self.packed(codes.reshape(strip.shape), scales), values.reshape(strip.shape)

    def whole(self, shape: tuple[int, int]) -> Arrays:
        """`weight_shape`."""
        return {"weight_shape": np.array(shape, np.int64)}

    @abstractmethod
    def config(self, skipped: Sequence[str]) -> Mapping[str, object]:
        """`quantization_config` for a model whose modules `skipped` keep 16 bits."""


def scales_of(largest: NDArray[np.float32], ratio: float, bits: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Scales of groups by their largest magnitudes, rounded up; 1 for groups of zeros."""
    middle = np.float32((1 << (bits - 1)) - 0.5)  # half of the range of codes
    exact = np.maximum(largest / middle * np.float32(ratio), SMALLEST_SCALE)
    scales = exact.astype(dtype)
    bits_of_scales = scales.view(np.uint16)
    bits_of_scales += scales.astype(np.float32) < exact  # the next number, as they are positive
    scales[largest == 0] = 1
    return scales


def codes_of(groups: Strip, scales: NDArray[Any], bits: int) -> Strip:
    """The nearest codes, ties to even, as whole numbers in f32."""
    codes = groups / scales.astype(np.float32)[:, :, None]
    np.rint(codes, out=codes)
    codes += 0.0  # -0 becomes 0: integers have one zero
    return np.clip(codes, -(1 << (bits - 1)), (1 << (bits - 1)) - 1, out=codes)


def searched_scales(groups: Strip, ratios: Iterable[float], bits: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The scales of the ratio with the least sum of squared errors in each group, the first of equals."""
    largest = np.abs(groups).max(axis=2)
    first, *others = ratios
    scales = scales_of(largest, first, bits, dtype)
    if others:
        least = _squared_error(groups, scales, bits)
        for ratio in others:
            tried = scales_of(largest, ratio, bits, dtype)
            error = _squared_error(groups, tried, bits)
            better = error < least
            scales, least = np.where(better, tried, scales), np.where(better, error, least)
    return scales


def config_of(weights: dict[str, object], skipped: Sequence[str]) -> dict[str, object]:
    """`quantization_config` of compressed-tensors, as llm-compressor writes it for weights alone. `weights`: the arguments that
    differ between formats."""
    arguments: dict[str, object] = {
        "actorder": None, "block_structure": None, "dynamic": False, "observer_kwargs": {}, "symmetric": True, "type": "int",
    }  # fmt: skip
    group: dict[str, object] = {
        "input_activations": None, "output_activations": None, "targets": ["Linear"], "weights": arguments | weights,
    }  # fmt: skip
    return {
        "config_groups": {"group_0": group}, "format": "pack-quantized", "ignore": [*skipped], "kv_cache_scheme": None,
        "quant_method": "compressed-tensors", "quantization_status": "compressed",
    }  # fmt: skip


def _squared_error(groups: Strip, scales: NDArray[Any], bits: int) -> NDArray[np.float64]:
    """For each group. Products of codes and scales are exact in f32: a scale has at most 11 significant bits."""
    difference = groups - codes_of(groups, scales, bits) * scales.astype(np.float32)[:, :, None]
    return np.square(difference, dtype=np.float64).sum(axis=2)
