"""Rounds weights to e4m3 with a scale for each block of 128 x 128: the format of Qwen3-*-FP8 (`engine.formats.fp8`).

A block's scale is its largest magnitude divided by 448, the largest number of e4m3, rounded to nearest in bf16 as those
checkpoints have it. Weights divided by the scale are rounded to nearest, ties to even; what the rounding of the scale put above
448 becomes 448, which is nearest too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import ml_dtypes
import numpy as np

from engine.formats.codes import E4M3_MAX
from engine.formats.fp8 import BLOCK
from engine.tools.quantize.rounding import SMALLEST_SCALE, Arrays, Strip

SCALE: Final = np.dtype(ml_dtypes.bfloat16)
CODE: Final = np.dtype(ml_dtypes.float8_e4m3fn)


class Fp8:
    """The format; it has no options. Any shape can be stored: blocks at the last row and column may be cut."""

    height = BLOCK[0]

    def problem(self, shape: tuple[int, int]) -> tuple[str, str] | None:
        """None."""
        return None

    def stored(self, shape: tuple[int, int], dtype: np.dtype[Any]) -> Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """`weight` (N, K) and `weight_scale_inv` (ceil(N / 128), ceil(K / 128))."""
        grid = (-(-shape[0] // BLOCK[0]), -(-shape[1] // BLOCK[1]))
        return {"weight": (CODE, shape), "weight_scale_inv": (SCALE, grid)}

    def rounded(self, strip: Strip, dtype: np.dtype[Any]) -> tuple[Arrays, Strip]:
        """Codes and scales of a strip, and their products in f32."""
        rows, columns = strip.shape
        of_rows = np.maximum.reduceat(np.abs(strip), range(0, rows, BLOCK[0]), axis=0)
        largest = np.maximum.reduceat(of_rows, range(0, columns, BLOCK[1]), axis=1)
        scales = np.maximum(largest / np.float32(E4M3_MAX), SMALLEST_SCALE).astype(SCALE)
        scales[largest == 0] = 1
        each = np.repeat(np.repeat(scales.astype(np.float32), BLOCK[0], axis=0)[:rows], BLOCK[1], axis=1)[:, :columns]
        codes = np.clip(strip / each, -E4M3_MAX, E4M3_MAX).astype(CODE)
        return {"weight": codes, "weight_scale_inv": scales}, codes.astype(np.float32) * each

    def whole(self, shape: tuple[int, int]) -> Arrays:
        """None: codes and scales are split by rows."""
        return {}

    def config(self, skipped: Sequence[str]) -> Mapping[str, object]:
        """As Qwen3-*-FP8 has it."""
        return {
            "activation_scheme": "dynamic", "fmt": "e4m3", "modules_to_not_convert": [*skipped], "quant_method": "fp8",
            "weight_block_size": [*BLOCK],
        }  # fmt: skip
