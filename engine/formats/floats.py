"""`float-quantized` weights of compressed-tensors: e4m3 codes with scales of blocks, of rows or of the whole tensor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.formats.codes import E4M3_MAX
from engine.formats.forms import Form, Fp8, Scales
from engine.formats.fp8 import BLOCK
from engine.formats.stored import SCALES, Stored, check_e4m3_blocks


@dataclass(frozen=True, slots=True)
class FloatQuantized:
    """`strategy` is block, channel or tensor."""

    strategy: str

    @property
    def suffixes(self) -> tuple[str, ...]:
        return "weight", "weight_scale"

    @property
    def unused(self) -> tuple[str, ...]:
        return ("input_scale",)

    def check(self, stored: Stored) -> None:
        """Headers of a module; ModelError if one does not fit."""
        rows, _ = stored.shape
        if self.strategy == "block":
            check_e4m3_blocks(stored, "weight", "weight_scale", BLOCK)
            return
        stored.check("weight", ["F8_E4M3"], stored.shape)
        if self.strategy == "channel":
            stored.check("weight_scale", SCALES, (rows, 1), (rows,), why="one for each row")
        else:
            stored.check("weight_scale", SCALES, (1,), (), (1, 1), why="one for the weight")

    def form(self, stored: Stored) -> Form:
        """The module's weight; views of the files. ModelError for a code or a scale that is no number."""
        return Fp8(self.codes(stored), self.scales(stored), self.block(stored))

    def block(self, stored: Stored) -> tuple[int, int]:
        """Rows and columns with one scale."""
        rows, columns = stored.shape
        return {"block": BLOCK, "channel": (1, columns), "tensor": (rows, columns)}[self.strategy]

    def codes(self, stored: Stored) -> NDArray[np.uint8]:
        """(N, K), a view of the file; ModelError if one is NaN."""
        return stored.e4m3("weight")

    def scales(self, stored: Stored) -> Scales:
        """One for each block, two-dimensional; a view of the file. ModelError if a product with a code is not finite."""
        scales = stored.scales("weight_scale", E4M3_MAX)
        return scales if self.strategy == "block" else scales.reshape(-1, 1)
