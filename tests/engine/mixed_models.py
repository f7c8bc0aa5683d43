"""Tiny mixtures of experts with dense layers between, written once for the tests of a module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.models.config import ModelConfig
from engine.tools import tiny

HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 192}
"""As few heads as fit, and dense layers of another size than experts."""

FIRST_AND_LAST: Any = {"layers": 5, "dense_layers": (0, 3, 4)}
"""A dense layer is the first and the last, and every pair of kinds is there."""
BETWEEN: Any = {"layers": 4, "dense_layers": (1, 2)}
"""Layers with experts are the first and the last."""
EVERY_SECOND: Any = {"layers": 4, "decoder_sparse_step": 2}
"""As `decoder_sparse_step` says, and no list of layers."""


def write_mixed(folder: Path, *, layers: int, dense_layers: Sequence[int] = (), seed: int = 0, hidden_size: int = 64,
                **keys: Any) -> ModelConfig:  # fmt: skip
    """As `write_tiny_model`, with other keys of config.json."""
    kind = tiny.KINDS["qwen3_moe"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tiny.KINDS, "qwen3_moe", replace(kind, keys={**kind.keys, **HEADS, **keys}))
        return tiny.write_tiny_model(
            folder, family="qwen3_moe", seed=seed, hidden_size=hidden_size, layers=layers, dense_layers=dense_layers
        )
