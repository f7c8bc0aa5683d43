"""Rounds weights to symmetric 8-bit integers with a scale for each row, or for each group of columns: W8A16 of
compressed-tensors, `pack-quantized` (`engine.formats.integers`).

Codes are from -128 to 127, four in a word. A row or group whose largest magnitude is m gets the scale `m / 127.5` (`integers`):
nothing is clipped by more than half a scale, so that no weight is further than that from its value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.tools.quantize.integers import codes_of, config_of, searched_scales
from engine.tools.quantize.rounding import Arrays, Strip

WORD = 4
"""Codes in a word."""


@dataclass(frozen=True, slots=True)
class Int8:
    """The format with a scale for each `group` columns, or for each row if it is None."""

    group: int | None = None
    height: int = 8
    bits: int = 8

    def problem(self, shape: tuple[int, int]) -> tuple[str, str] | None:
        """A row must be whole groups, and whole words."""
        unit = self.group or WORD
        if shape[1] % unit == 0:
            return None
        what = f"groups of {unit}" if self.group else f"words of {unit} codes"
        fix = "leave --group-size out" if self.group and shape[1] % WORD == 0 else "keep it in 16 bits with --ignore"
        return f"has {shape[1]} columns, which are not whole {what}", fix

    def stored(self, shape: tuple[int, int], dtype: np.dtype[Any]) -> Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """`weight_packed` (N, K / 4), `weight_scale` (N, groups) in the dtype of the weight, `weight_shape` (2)."""
        rows, columns = shape
        return {
            "weight_packed": (np.dtype(np.int32), (rows, columns // WORD)),
            "weight_scale": (dtype, (rows, columns // self.columns(columns))), "weight_shape": (np.dtype(np.int64), (2,)),
        }  # fmt: skip

    def columns(self, width: int) -> int:
        """Of a group, or of a row."""
        return self.group or width

    def scales(self, groups: Strip, dtype: np.dtype[Any]) -> NDArray[Any]:
        """The scales that clip nothing."""
        return searched_scales(groups, (1.0,), self.bits, dtype)

    def packed(self, codes: Strip, scales: NDArray[Any]) -> Arrays:
        """`weight_packed` and `weight_scale`."""
        fields = np.ascontiguousarray((codes + 128).astype(np.uint8))
        return {"weight_packed": fields.view(np.int32), "weight_scale": scales}

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

    def config(self, skipped: Sequence[str]) -> Mapping[str, object]:
        """As llm-compressor writes it for its preset W8A16."""
        strategy = "group" if self.group else "channel"
        return config_of({"group_size": self.group, "num_bits": 8, "observer": "minmax", "strategy": strategy}, skipped)
