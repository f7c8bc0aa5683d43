"""Rounds weights to symmetric 4-bit integers with a scale for each group of columns: W4A16 of compressed-tensors,
`pack-quantized` (`engine.formats.integers`).

Codes are from -8 to 7. A group whose largest magnitude is m gets the scale `m / 7.5 * r` (`integers`). With `r = 1` no weight
is further than half a scale from its value (`minmax`). `mse` takes the r of `RATIOS` with the least sum of squared errors, the
first of equals; it may clip the largest weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from engine.formats.nibbles import packed
from engine.tools.quantize.integers import IntegerFormat, config_of, searched_scales
from engine.tools.quantize.rounding import Strip

OBSERVERS: Final = ("mse", "minmax")
"""How scales are chosen, by the names of llm-compressor."""

RATIOS: Final = tuple(numerator / 32 for numerator in (32, *range(34, 32, -1), *range(31, 19, -1)))
"""1 first, so that the search is never worse than `minmax`; then 34/32 to 20/32."""


@dataclass(frozen=True, slots=True)
class Int4(IntegerFormat):
    """The format with a scale for each `group` columns, chosen by `observer`."""

    group: int = 128
    observer: str = "mse"
    bits: ClassVar[int] = 4

    def problem(self, shape: tuple[int, int]) -> tuple[str, str] | None:
        """A row must be whole groups."""
        if shape[1] % self.group == 0:
            return None
        sizes = [size for size in (128, 64, 32, 16, 8) if shape[1] % size == 0 and size < self.group]
        fix = f"give --group-size {sizes[0]}" if sizes else "keep it in 16 bits with --ignore"
        return f"has {shape[1]} columns, which are not whole groups of {self.group}", fix

    def columns(self, width: int) -> int:
        """Of a group."""
        return self.group

    def scales(self, groups: Strip, dtype: np.dtype[Any]) -> NDArray[Any]:
        """The scales that the observer chooses."""
        return searched_scales(groups, RATIOS if self.observer == "mse" else RATIOS[:1], self.bits, dtype)

    def fields(self, codes: NDArray[np.uint8]) -> NDArray[np.int32]:
        """Words of eight codes, the first in the lowest bits."""
        return packed(codes).view(np.int32)

    def config(self, skipped: Sequence[str]) -> Mapping[str, object]:
        """As llm-compressor writes it for its preset W4A16."""
        weights: dict[str, object] = {
            "group_size": self.group, "num_bits": 4, "observer": self.observer, "strategy": "group",
        }  # fmt: skip
        return config_of(weights, skipped)
