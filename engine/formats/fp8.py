"""`quant_method: fp8`, the official Qwen3-*-FP8: e4m3 weights with a scale for each block of 128 x 128.

A module has `weight` F8_E4M3 (N, K) and `weight_scale_inv` (ceil(N / 128), ceil(K / 128)) in bf16, f16 or f32, which despite
its name multiplies (transformers, `FineGrainedFP8Config`). `input_scale` is not used: activations stay in 16 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engine.formats.codes import E4M3_MAX
from engine.formats.fields import Fields
from engine.formats.forms import Form, Fp8, Scales
from engine.formats.quantization import Quantization, every_linear
from engine.formats.stored import Stored, check_e4m3_blocks

BLOCK: Final = (128, 128)


@dataclass(frozen=True, slots=True)
class Fp8Blocks:
    """The scheme; it has no options."""

    suffixes: tuple[str, ...] = ("weight", "weight_scale_inv")
    unused: tuple[str, ...] = ("input_scale",)

    def check(self, stored: Stored) -> None:
        """Headers of a module; ModelError if one does not fit."""
        check_e4m3_blocks(stored, "weight", "weight_scale_inv", BLOCK)

    def form(self, stored: Stored) -> Form:
        """The module's weight; views of the files. ModelError for a code or a scale that is no number."""
        return Fp8(self.codes(stored), self.scales(stored), self.block(stored))

    def block(self, stored: Stored) -> tuple[int, int]:
        """Rows and columns with one scale."""
        return BLOCK

    def codes(self, stored: Stored) -> NDArray[np.uint8]:
        """(N, K), a view of the file; ModelError if one is NaN."""
        return stored.e4m3("weight")

    def scales(self, stored: Stored) -> Scales:
        """(ceil(N / 128), ceil(K / 128)), a view of the file; ModelError if a product with a code is not finite."""
        return stored.scales("weight_scale_inv", E4M3_MAX)


def read(fields: Fields) -> Quantization:
    """What a config says; ModelError names the key that is not supported."""
    fields.one_of("quant_method", "fp8")
    fields.one_of("fmt", "e4m3", default="e4m3")
    fields.one_of("scale_fmt", "float", default="float")
    fields.one_of("expert_dtype", "fp8", default="fp8")
    fields.one_of("activation_scheme", "dynamic", "static", default="dynamic")
    if fields.get("weight_block_size") != list(BLOCK):
        fields.refuse("weight_block_size", "[128, 128]")
    skipped = fields.strings("modules_to_not_convert", "ignored_layers")
    fields.ignore("ignored_layers", "dequantize")
    fields.finish()
    return every_linear("fp8", Fp8Blocks(), skipped)
