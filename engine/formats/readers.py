"""What reads `quantization_config`, by its method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from engine.formats import awq, compressed_tensors, fp8, gptq, nvfp4
from engine.formats.fields import Fields
from engine.formats.quantization import Quantization

READERS: Final[Mapping[str, Callable[[Fields], Quantization]]] = {
    "fp8": fp8.read, "awq": awq.read, "gptq": gptq.read, "compressed-tensors": compressed_tensors.read,
    "modelopt": nvfp4.read_modelopt, "modelopt_fp4": nvfp4.read_modelopt,
}  # fmt: skip
"""By `quant_method`."""
