"""Reads `config.json` of a dense Llama 3 model.

Keys and defaults are those of `LlamaConfig` in transformers. Files written by transformers 5 are read too: they have `dtype`
for `torch_dtype`, and `rope_parameters` for `rope_theta` and `rope_scaling`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import ClassVar, Final

from engine.checkpoint.json_file import show
from engine.models.config import (
    HIGHEST,
    ModelConfig,
    check_heads,
    refuse_experts,
    refuse_other_architectures,
    rope_keys,
    torch_dtype,
)  # fmt: skip
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
        refuse_experts(keys, OTHER_MODEL)
        if keys.flag("mlp_bias", False):
            keys.refuse("mlp_bias", "false: projections with a bias are not supported", OTHER_MODEL)
        if keys.get("partial_rotary_factor") not in (None, 1.0):
            keys.refuse("partial_rotary_factor", "absent: heads that are rotated in part are not supported", OTHER_MODEL)
        rope = rope_keys(keys)
        defaults = _default_sizes(keys)
        config = cls(
            **{name: keys.integer(name, 1, highest, defaults.get(name)) for name, highest in HIGHEST.items()},
            rms_norm_eps=keys.number("rms_norm_eps", 0.0, 1.0),
            rope_theta=(keys if rope.get("rope_theta") is None else rope).number("rope_theta", 0.0, math.inf, 10000.0),
            rope_scaling=_scaling(rope),
            tie_word_embeddings=keys.flag("tie_word_embeddings", False),
            torch_dtype=torch_dtype(keys),
        )
        check_heads(keys, config)
        return config


def _default_sizes(keys: Keys) -> dict[str, int]:
    """The sizes that may be absent: files of Llama 3 and 3.1 have no `head_dim`."""
    hidden, heads = (keys.integer(name, 1, HIGHEST[name]) for name in ("hidden_size", "num_attention_heads"))
    if keys.get("head_dim") is None and hidden % heads:
        keys.refuse("num_attention_heads", f"a divisor of hidden_size = {hidden}, because `head_dim` is absent")
    return {"head_dim": hidden // heads, "num_key_value_heads": heads}


def _scaling(rope: Keys) -> RopeScaling | None:
    """How positions are scaled; ModelError if in another way than that of Llama 3, or if a key is not of that way."""
    name = "type" if rope.get("rope_type") is None and rope.get("type") is not None else "rope_type"
    is_scaled = rope.get(name) == SCALED
    if not is_scaled and rope.get(name) not in (None, "default"):
        rope.refuse(name, f'"default" or "{SCALED}": other scaled positions are not supported', OTHER_MODEL)
    if rope.get("type") not in (None, rope.get(name)):
        rope.refuse("type", f"absent, or `rope_type`: {show(rope.get(name))}")
    numbers = {field.name for field in fields(RopeScaling)} if is_scaled else set[str]()
    known = {"rope_type", "type", "rope_theta", *numbers}
    for unknown in (key for key in rope.values if key not in known and rope.get(key) is not None):
        kind = SCALED if is_scaled else "default"
        rope.refuse(unknown, f'absent: positions of `rope_type` "{kind}" have no such number', OTHER_MODEL)
    if not is_scaled:
        return None
    low = rope.number("low_freq_factor", 0.0, math.inf)
    return RopeScaling(
        factor=rope.number("factor", 1.0, math.inf, lowest_included=True), low_freq_factor=low,
        high_freq_factor=rope.number("high_freq_factor", low, math.inf),
        original_max_position_embeddings=rope.integer(
            "original_max_position_embeddings", 1, HIGHEST["max_position_embeddings"]
        ),
    )  # fmt: skip
