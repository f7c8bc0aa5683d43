"""NVFP4 weights of two producers: e2m1 codes, an e4m3 scale for each 16 columns, an f32 scale for the tensor.

| producer | codes, U8 (N, K / 2) | scales of groups, F8_E4M3 (N, K / 16) | scale of the tensor |
|---|---|---|---|
| compressed-tensors | `weight_packed` | `weight_scale` | `weight_global_scale`, which divides |
| ModelOpt | `weight` | `weight_scale` | `weight_scale_2`, which multiplies |

The low nibble of a byte is the even column. Code 8 is -0, which ModelOpt's own reader makes 0. Only weights are read:
activations stay in 16 bits, so scales of activations (`input_scale`, `input_global_scale`) are not used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from engine.formats.codes import E2M1_MAX, E4M3_MAX
from engine.formats.fields import Fields
from engine.formats.forms import Form, Nvfp4
from engine.formats.quantization import Quantization, every_linear
from engine.formats.stored import Stored

GROUP: Final = 16


@dataclass(frozen=True, slots=True)
class PackedNvfp4:
    """How one producer names the tensors, and whether the scale of the tensor divides."""

    codes: str
    tensor_scale: str
    divides: bool
    unused: tuple[str, ...]

    @property
    def suffixes(self) -> tuple[str, ...]:
        return self.codes, "weight_scale", self.tensor_scale

    def check(self, stored: Stored) -> None:
        """Headers of a module; ModelError if one does not fit."""
        rows, columns = stored.shape
        stored.check(self.codes, ["U8"], (rows, columns // 2), why="rows of the weight, columns / 2")
        groups = stored.check_groups(GROUP, self.codes)
        stored.check("weight_scale", ["F8_E4M3"], (rows, groups), why="rows of the weight, columns / 16")
        stored.check(self.tensor_scale, ["F32"], (1,), (), why="one for the weight")

    def form(self, stored: Stored) -> Form:
        """The module's weight; views of the files. ModelError for scales that are no numbers."""
        scale = stored.scalar(self.tensor_scale)
        with np.errstate(over="ignore", divide="ignore"):
            largest = np.float32(E4M3_MAX) / scale if self.divides else np.float32(E4M3_MAX) * scale
            if not np.isfinite(largest * np.float32(E2M1_MAX)):
                stored.refuse(self.tensor_scale, f"is {scale:g}: the largest weight would not be finite")
        return Nvfp4(stored.array(self.codes), stored.e4m3("weight_scale"), scale, self.divides)


COMPRESSED_TENSORS: Final = PackedNvfp4("weight_packed", "weight_global_scale", True, ("input_global_scale",))
MODELOPT: Final = PackedNvfp4("weight", "weight_scale_2", False, ("input_scale",))

INERT: Final = ("producer", "config_groups", "kv_cache_quant_algo", "kv_cache_scheme", "quant_method")
"""Keys that repeat what `quant_algo` says, or concern activations and the cache."""


def read_modelopt(fields: Fields) -> Quantization:
    """What a config of ModelOpt says, `quantization_config` of config.json or `quantization` of `hf_quant_config.json`;
    ModelError names the key that is not supported."""
    fields.one_of("quant_algo", "nvfp4", "w4a16_nvfp4")
    fields.one_of("group_size", GROUP, default=GROUP)
    skipped = fields.strings("ignore", "exclude_modules")
    fields.ignore("exclude_modules", *INERT)
    fields.finish()
    return every_linear("modelopt", MODELOPT, skipped)
