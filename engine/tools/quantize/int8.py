"""Rounds weights to symmetric 8-bit integers with a scale for each row, or for each group of columns: W8A16 of
compressed-tensors, `pack-quantized` (`engine.formats.integers`).

Codes are from -128 to 127, four in a word. A row or group whose largest magnitude is m gets the scale `m / 127.5` (`integers`):
nothing is clipped by more than half a scale, so that no weight is further than that from its value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from engine.tools.quantize.integers import IntegerFormat, config_of, searched_scales
from engine.tools.quantize.rounding import Strip

WORD = 4
"""Codes in a word."""


@dataclass(frozen=True, slots=True)
class Int8(IntegerFormat):
    """The format with a scale for each `group` columns, or for each row if it is None."""

    group: int | None = None
    bits: ClassVar[int] = 8

    def problem(self, shape: tuple[int, int]) -> tuple[str, str] | None:
        """A row must be whole groups, and whole words."""
        unit = self.group or WORD
        if shape[1] % unit == 0:
            return None
        what = f"groups of {unit}" if self.group else f"words of {unit} codes"
        fix = "leave --group-size out" if self.group and shape[1] % WORD == 0 else "keep it in 16 bits with --ignore"
        return f"has {shape[1]} columns, which are not whole {what}", fix

    def columns(self, width: int) -> int:
        """Of a group, or of a row."""
        return self.group or width

    def scales(self, groups: Strip, dtype: np.dtype[Any]) -> NDArray[Any]:
        """The scales that clip nothing."""
        return searched_scales(groups, (1.0,), self.bits, dtype)

    def fields(self, codes: NDArray[np.uint8]) -> NDArray[np.int32]:
        """Words of four codes, the first in the lowest bits."""
        return np.ascontiguousarray(codes).view(np.int32)

    def config(self, skipped: Sequence[str]) -> Mapping[str, object]:
        """As llm-compressor writes it for its preset W8A16."""
        strategy = "group" if self.group else "channel"
        return config_of({"group_size": self.group, "num_bits": 8, "observer": "minmax", "strategy": strategy}, skipped)
