"""Integer weights of compressed-tensors: `pack-quantized` of 4 and 8 bits, and `int-quantized` of 8 bits.

A packed module has `weight_packed` I32 (N, K * bits / 32), `weight_scale` (N, K / group), `weight_shape` I64 (2), and if it is
asymmetric `weight_zero_point` I32 (N * bits / 32, K / group). Codes are stored plus 2^(bits - 1), and field `i` of word `j` is
column `32 / bits * j + i`; zero points are stored likewise, with fields along the rows. A module that is not packed has
`weight` I8 (N, K), `weight_scale`, and if it is asymmetric `weight_zero_point` I8 in the shape of the scales.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.formats.forms import Form, Int4, Int8
from engine.formats.gptq import column_order, permuted, permuted_words
from engine.formats.nibbles import transposed, unpacked
from engine.formats.stored import ONE_MODEL, SCALES, Stored


@dataclass(frozen=True, slots=True)
class PackedIntegers:
    """Codes of `bits` bits in words, with a scale for each `group` columns, or for a row if it is -1."""

    bits: int
    group: int
    symmetric: bool

    @property
    def suffixes(self) -> tuple[str, ...]:
        zeros = () if self.symmetric else ("weight_zero_point",)
        return "weight_packed", "weight_scale", "weight_shape", "weight_g_idx", *zeros

    @property
    def unused(self) -> tuple[str, ...]:
        return ("input_scale",)

    def check(self, stored: Stored) -> None:
        """Headers of a module; ModelError if one does not fit."""
        rows, columns = stored.shape
        fields = 32 // self.bits
        stored.check("weight_packed", ["I32"], (rows, columns // fields), why=f"rows of the weight, columns / {fields}")
        stored.check_multiple("weight_packed", 1, fields)
        groups = stored.check_groups(stored.columns_of(self.group), "weight_scale")
        stored.check("weight_scale", SCALES, (rows, groups), why="rows of the weight, groups of columns")
        stored.check("weight_shape", ["I64", "I32"], (2,))
        if not self.symmetric:
            stored.check("weight_zero_point", ["I32"], (-(-rows // fields), groups), why=f"rows / {fields}, groups of columns")
        if stored.has("weight_g_idx"):
            stored.check("weight_g_idx", ["I32"], (columns,))

    def form(self, stored: Stored) -> Form:
        """The module's weight; ModelError for a scale that is no number, and for groups that are none."""
        group, order, words = stored.columns_of(self.group), self._order(stored), self.words(stored)
        scales = stored.scales("weight_scale", (1 << self.bits) - 1)
        zeros = None if self.symmetric else transposed(self._zeros(stored))
        if self.bits == 4:
            return Int4(permuted_words(words, order), scales, group, zeros, order)
        values = (permuted(unpacked(words, 8), order) ^ np.uint8(0x80)).view(np.int8)
        signed = None if zeros is None else (zeros ^ np.uint8(0x80)).view(np.int8)
        return Int8(values, scales, group, signed, order)

    def kept_group(self, stored: Stored) -> int | None:
        """The columns that share a scale; None unless codes have four bits and columns their order. ModelError for bad
        groups."""
        return stored.columns_of(self.group) if self.bits == 4 and self._order(stored) is None else None

    def scales_dtype(self, stored: Stored) -> str:
        """Of the file, by its name there."""
        return stored.dtype("weight_scale")

    def words(self, stored: Stored) -> NDArray[np.uint32]:
        """Codes in the order of the file, (N, K * bits / 32), a view of it; ModelError if `weight_shape` is another."""
        shape = tuple(int(size) for size in stored.array("weight_shape"))
        if shape != stored.shape:
            stored.refuse("weight_shape", f"is {list(shape)}, and config.json asks for {list(stored.shape)}", ONE_MODEL)
        return stored.array("weight_packed")

    def group_scales(self, stored: Stored) -> NDArray[Any]:
        """(K / group, N); ModelError for one that is no number."""
        return stored.scales("weight_scale", (1 << self.bits) - 1, transpose=True)

    def group_zeros(self, stored: Stored) -> NDArray[np.uint8]:
        """(K / group, N)"""
        rows, columns = stored.shape
        groups = columns // stored.columns_of(self.group)
        return np.full((groups, rows), 1 << (self.bits - 1), np.uint8) if self.symmetric else self._zeros(stored)

    def _order(self, stored: Stored) -> NDArray[np.int32] | None:
        group = stored.columns_of(self.group)
        return column_order(stored, "weight_g_idx", group) if stored.has("weight_g_idx") else None

    def _zeros(self, stored: Stored) -> NDArray[np.uint8]:
        """Zero points as stored, (K / group, N)."""
        fields = unpacked(transposed(stored.array("weight_zero_point")), self.bits)
        return np.ascontiguousarray(fields[:, : stored.shape[0]])


@dataclass(frozen=True, slots=True)
class IntQuantized:
    """Codes of 8 bits as they are, with a scale for each `group` columns, for a row if it is -1, or for the tensor."""

    group: int
    one: bool
    symmetric: bool

    @property
    def suffixes(self) -> tuple[str, ...]:
        return "weight", "weight_scale", *(() if self.symmetric else ("weight_zero_point",))

    @property
    def unused(self) -> tuple[str, ...]:
        return "input_scale", "input_zero_point"

    def check(self, stored: Stored) -> None:
        """Headers of a module; ModelError if one does not fit."""
        stored.check("weight", ["I8"], stored.shape)
        groups = stored.check_groups(stored.columns_of(self.group), "weight_scale")
        shapes = ((1,), (), (1, 1)) if self.one else ((stored.shape[0], groups),)
        stored.check("weight_scale", SCALES, *shapes, why="one for each group")
        if not self.symmetric:
            stored.check("weight_zero_point", ["I8"], *shapes, why="one for each group")

    def form(self, stored: Stored) -> Form:
        """The module's weight; codes are a view of the file. ModelError for a scale that is no number."""
        scales = self._of_rows(stored, stored.scales("weight_scale", 255))
        zeros = None if self.symmetric else self._of_rows(stored, stored.array("weight_zero_point"))
        return Int8(stored.array("weight"), scales, stored.columns_of(self.group), zeros)

    def _of_rows(self, stored: Stored, values: NDArray[Any]) -> NDArray[Any]:
        """One value of the tensor as one for each row."""
        return np.broadcast_to(values.reshape(1, 1), (stored.shape[0], 1)) if self.one else values
