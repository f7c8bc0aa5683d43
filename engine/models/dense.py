"""The numbers that the step of a dense model reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from engine.models.config import SIZES

NUMBERS: Final = (*SIZES, "rms_norm_eps")
"""Numbers of config.json that determine a step of a dense model."""

UNMEASURED: Final[Mapping[str, int]] = {
    "parts": 33, "head_parts": 8, "short_slots": 64, "few_tokens": 8, "few_blocks": 132, "row_blocks": 8, "w8a8_tokens": 8,
    "coded_slots": 128,
}  # fmt: skip
"""Values for the measured numbers of a bundle if there is no bundle: any that the kernels support will do."""
