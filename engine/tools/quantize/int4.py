"""Rounds weights to symmetric 4-bit integers with a scale for each group of columns: W4A16 of compressed-tensors,
`pack-quantized` (`engine.formats.integers`).

Codes are from -8 to 7. A group whose largest magnitude is m gets the scale `m / 7.5 * r`, rounded up in the weight's dtype.
With `r = 1` no weight is further than half a scale from its value (`minmax`). `mse` takes the r of `RATIOS` with the least sum
of squared errors, the first of equals; it may clip the largest weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.formats.nibbles import packed
from engine.tools.quantize.rounding import SMALLEST_SCALE, Arrays, Strip

OBSERVERS: Final = ("mse", "minmax")
"""How scales are chosen, by the names of llm-compressor."""

RATIOS: Final = tuple(numerator / 32 for numerator in (32, *range(34, 32, -1), *range(31, 19, -1)))
"""1 first, so that the search is never worse than `minmax`; then 34/32 to 20/32."""

LOWEST, HIGHEST = -8, 7
MIDDLE: Final = 7.5
"""Half of the range of codes."""


@dataclass(frozen=True, slots=True)
class Int4:
    """The format with a scale for each `group` columns, chosen by `observer`."""

    group: int = 128
    observer: str = "mse"
    height: int = 8

    def problem(self, shape: tuple[int, int]) -> tuple[str, str] | None:
        """A row must be whole groups."""
        if shape[1] % self.group == 0:
            return None
        sizes = [size for size in (128, 64, 32, 16, 8) if shape[1] % size == 0 and size < self.group]
        fix = f"give --group-size {sizes[0]}" if sizes else "keep it in 16 bits with --ignore"
        return f"has {shape[1]} columns, which are not whole groups of {self.group}", fix

    def stored(self, shape: tuple[int, int], dtype: np.dtype[Any]) -> Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """`weight_packed` (N, K / 8), `weight_scale` (N, K / group) in the dtype of the weight, `weight_shape` (2)."""
        rows, columns = shape
        return {
            "weight_packed": (np.dtype(np.int32), (rows, columns // 8)),
            "weight_scale": (dtype, (rows, columns // self.group)), "weight_shape": (np.dtype(np.int64), (2,)),
        }  # fmt: skip

    def rounded(self, strip: Strip, dtype: np.dtype[Any]) -> tuple[Arrays, Strip]:
        """Packed codes and scales of a strip, and their products in f32."""
        groups = strip.reshape(len(strip), -1, self.group)
        largest = np.abs(groups).max(axis=2)
        scales = _scales(largest, 1.0, dtype)
        if self.observer == "mse":
            least = _squared_error(groups, scales)
            for ratio in RATIOS[1:]:
                others = _scales(largest, ratio, dtype)
                error = _squared_error(groups, others)
                better = error < least
                scales, least = np.where(better, others, scales), np.where(better, error, least)
        codes = _codes(groups, scales)
        values = codes * scales.astype(np.float32)[:, :, None]
        fields = (codes - LOWEST).astype(np.uint8).reshape(strip.shape)
        return {"weight_packed": packed(fields).view(np.int32), "weight_scale": scales}, values.reshape(strip.shape)

    def whole(self, shape: tuple[int, int]) -> Arrays:
        """`weight_shape`."""
        return {"weight_shape": np.array(shape, np.int64)}

    def config(self, skipped: Sequence[str]) -> Mapping[str, object]:
        """As llm-compressor writes it for its preset W4A16."""
        weights: dict[str, object] = {
            "actorder": None, "block_structure": None, "dynamic": False, "group_size": self.group, "num_bits": 4,
            "observer": self.observer, "observer_kwargs": {}, "strategy": "group", "symmetric": True, "type": "int",
        }  # fmt: skip
        group: dict[str, object] = {
            "input_activations": None,
            "output_activations": None,
            "targets": ["Linear"],
            "weights": weights,
        }
        return {
            "config_groups": {"group_0": group}, "format": "pack-quantized", "ignore": [*skipped], "kv_cache_scheme": None,
            "quant_method": "compressed-tensors", "quantization_status": "compressed",
        }  # fmt: skip


def _scales(largest: NDArray[np.float32], ratio: float, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Scales of groups, rounded up; 1 for groups of zeros."""
    exact = np.maximum(largest / np.float32(MIDDLE) * np.float32(ratio), SMALLEST_SCALE)
    scales = exact.astype(dtype)
    bits = scales.view(np.uint16)
    bits += scales.astype(np.float32) < exact  # the next number, as they are positive
    scales[largest == 0] = 1
    return scales


def _codes(groups: Strip, scales: NDArray[Any]) -> Strip:
    """The nearest codes, ties to even, as whole numbers in f32."""
    codes = groups / scales.astype(np.float32)[:, :, None]
    np.rint(codes, out=codes)
    codes += 0.0  # -0 becomes 0: integers have one zero
    return np.clip(codes, LOWEST, HIGHEST, out=codes)


def _squared_error(groups: Strip, scales: NDArray[Any]) -> NDArray[np.float64]:
    """For each group. Differences are exact in f32: a weight has at most 11 significant bits, and so has a scale."""
    difference = groups - _codes(groups, scales) * scales.astype(np.float32)[:, :, None]
    return np.square(difference, dtype=np.float64).sum(axis=2)
