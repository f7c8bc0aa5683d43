"""Tiny models whose weights are in 16 bits or in a quantised format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.tools.quantize.checkpoint import prepare, write_quantised
from engine.tools.quantize.fp8 import Fp8
from engine.tools.quantize.int4 import Int4
from engine.tools.tiny import write_tiny_model


def tiny_in_format(root: Path, form: str, *, hidden_size: int = 128, **options: Any) -> Path:
    """The folder, inside `root`, of a tiny model (`write_tiny_model`, with its options) with weights in `16bit`, `int4`, or as
    `fp8` and `w8a8` read them."""
    write_tiny_model(root / "source", hidden_size=hidden_size, **options)
    if form == "16bit":
        return root / "source"
    write_quantised(
        prepare(root / "source", Int4(128, "mse") if form == "int4" else Fp8()), root / "model", 1 << 20, lambda *_: None
    )  # fmt: skip
    return root / "model"
