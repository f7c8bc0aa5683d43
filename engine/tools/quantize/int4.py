"""Rounds weights to symmetric 4-bit integers with a scale for each group of columns: W4A16 of compressed-tensors,
`pack-quantized` (`engine.formats.integers`).

Codes are from -8 to 7. A group whose largest magnitude is m gets the scale `m / 7.5 * r` (`integers`). With `r = 1` no weight
is further than half a scale from its value (`minmax`). `mse` takes the r of `RATIOS` with the least sum of squared errors, the
first of equals; it may clip the largest weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.formats.nibbles import packed
from engine.tools.quantize.integers import codes_of, config_of, searched_scales
from engine.tools.quantize.rounding import Arrays, Strip

OBSERVERS: Final = ("mse", "minmax")
"""How scales are chosen, by the names of llm-compressor."""

RATIOS: Final = tuple(numerator / 32 for numerator in (32, *range(34, 32, -1), *range(31, 19, -1)))
"""1 first, so that the search is never worse than `minmax`; then 34/32 to 20/32."""


@dataclass(frozen=True, slots=True)
class Int4:
    """The format with a scale for each `group` columns, chosen by `observer`."""

    group: int = 128
    observer: str = "mse"
    height: int = 8
    bits: int = 4

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

    def columns(self, width: int) -> int:
        """Of a group."""
        return self.group

    def scales(self, groups: Strip, dtype: np.dtype[Any]) -> NDArray[Any]:
        """The scales that the observer chooses."""
        return searched_scales(groups, RATIOS if self.observer == "mse" else RATIOS[:1], self.bits, dtype)

    def packed(self, codes: Strip, scales: NDArray[Any]) -> Arrays:
        """`weight_packed` and `weight_scale`."""
        return {"weight_packed": packed((codes + 8).astype(np.uint8)).view(np.int32), "weight_scale": scales}

    def rounded(self, strip: Strip, dtype: np.dtype[Any]) -> tuple[Arrays, Strip]:
        """Packed codes and scales of a strip, and their products in f32."""
        groups = strip.reshape(len(strip), -1, self.group)
        scales = self.scales(groups, dtype)
        codes = codes_of(groups, scales, self.bits)
        values = codes * scales.astype(np.float32)[:, :, None]
        return self.packed(codes.reshape(strip.shape), scales), values.reshape(strip.shape)

    def whole(self, shape: tuple[int, int]) -> Arrays:
        """`weight_shape`."""
        return {"weight_shape": np.array(shape, np.int64)}

    def config(self, skipped: Sequence[str]) -> Mapping[str, object]:
        """As llm-compressor writes it for its preset W4A16."""
        weights: dict[str, object] = {
            "group_size": self.group, "num_bits": 4, "observer": self.observer, "strategy": "group",
        }  # fmt: skip
        return config_of(weights, skipped)
