"""Reads `config.json` of a dense Llama 3 model.

Keys and defaults are those of `LlamaConfig` in transformers. Files written by transformers 5 are read too: they have `dtype`
for `torch_dtype`, and `rope_parameters` for `rope_theta` and `rope_scaling`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Final

from engine.models.config import HIGHEST, ModelConfig, check_heads, refuse_other_architectures, rope_keys, torch_dtype
from engine.models.keys import Keys

DENSE: Final = "a dense Llama 3 model (1B to 70B)"
OTHER_MODEL: Final = f"give a folder of {DENSE}"
SCALED: Final = "llama3"
"""The only kind of scaled positions."""


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How frequencies of rotary position embeddings are scaled. A frequency with fewer than `low_freq_factor` turns in the
    original context is divided by `factor`; one with more than `high_freq_factor` turns stays."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class LlamaConfig(ModelConfig):
    """A dense Llama 3 model. `rope_scaling`: None if positions are not scaled."""

    model_type: ClassVar[str] = "llama"

    rope_scaling: RopeScaling | None = None

    @classmethod
    def read(cls, keys: Keys) -> LlamaConfig:
        """The config from the keys of a file; ModelError if it is damaged or of an unsupported model."""
        refuse_other_architectures(keys, "LlamaForCausalLM", OTHER_MODEL)
        if keys.flag("mlp_bias", False):
            keys.refuse("mlp_bias", "false: projections with a bias are not supported", OTHER_MODEL)
        if keys.get("head_dim") is None:
            heads = keys.integer("num_attention_heads", 1, HIGHEST["num_attention_heads"])
            keys = Keys(keys.path, keys.values | {"head_dim": keys.integer("hidden_size", 1, HIGHEST["hidden_size"]) // heads})
        rope = rope_keys(keys)
        config = cls(
            **{name: keys.integer(name, 1, highest) for name, highest in HIGHEST.items()},
            rms_norm_eps=keys.number("rms_norm_eps", 0.0, 1.0),
            rope_theta=(keys if rope.get("rope_theta") is None else rope).number("rope_theta", 0.0, math.inf, 10000.0),
            rope_scaling=_scaling(rope),
            tie_word_embeddings=keys.flag("tie_word_embeddings", False),
            torch_dtype=torch_dtype(keys),
        )
        check_heads(keys, config)
        return config


def _scaling(rope: Keys) -> RopeScaling | None:
    """How positions are scaled; ModelError if in another way than that of Llama 3."""
    name = "type" if rope.get("rope_type") is None and rope.get("type") is not None else "rope_type"
    if rope.get(name) in (None, "default"):
        return None
    if rope.get(name) != SCALED:
        rope.refuse(name, f'"default" or "{SCALED}": other scaled positions are not supported', OTHER_MODEL)
    low = rope.number("low_freq_factor", 0.0, math.inf)
    return RopeScaling(
        factor=rope.number("factor", 1.0, math.inf, lowest_included=True), low_freq_factor=low,
        high_freq_factor=rope.number("high_freq_factor", low, math.inf),
        original_max_position_embeddings=rope.integer(
            "original_max_position_embeddings", 1, HIGHEST["max_position_embeddings"]
        ),
    )  # fmt: skip
