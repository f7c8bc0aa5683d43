"""Reads `config.json` of a dense Qwen3 model.

Keys and defaults are those of `Qwen3Config` in transformers. Files written by transformers 5 are read too: they have `dtype`
for `torch_dtype`, and `rope_parameters` for `rope_theta` and `rope_scaling`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Final, cast

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

DENSE: Final = "a dense Qwen3 model (0.6B to 32B)"
OTHER_MODEL: Final = f"give a folder of {DENSE}"


@dataclass(frozen=True, slots=True)
class Qwen3Config(ModelConfig):
    """A dense Qwen3 model."""

    model_type: ClassVar[str] = "qwen3"

    @classmethod
    def read(cls, keys: Keys) -> Qwen3Config:
        """The config from the keys of a file; ModelError if it is damaged or of an unsupported model."""
        shared = common(keys, "Qwen3ForCausalLM", OTHER_MODEL)
        refuse_experts(keys, OTHER_MODEL)
        config = cls(**shared)
        check_heads(keys, config)
        return config


def common(keys: Keys, architecture: str, fix: str) -> dict[str, Any]:
    """What the configs of dense Qwen3 models and of mixtures have in common, by attribute of `ModelConfig`; ModelError for what
    is not supported."""
    refuse_other_architectures(keys, architecture, fix)
    rope = _rope(keys)
    found: dict[str, Any] = {
        **{name: keys.integer(name, 1, highest) for name, highest in HIGHEST.items()},
        "rms_norm_eps": keys.number("rms_norm_eps", 0.0, 1.0),
        "rope_theta": rope.number("rope_theta", 0.0, math.inf),
        "tie_word_embeddings": keys.flag("tie_word_embeddings", False),
        "torch_dtype": torch_dtype(keys),
    }
    _refuse_sliding_window(keys, found["num_hidden_layers"])
    return found


def _refuse_sliding_window(keys: Keys, layers: int) -> None:
    """ModelError if any layer uses sliding-window attention. The rule is that of `Qwen3Config`: layers from `max_window_layers`
    on do if `use_sliding_window` is true and `sliding_window` is a number, unless `layer_types` lists each layer's kind."""
    fix = "give a model that attends to all positions"
    kinds = keys.get("layer_types")
    if kinds is not None:
        if not isinstance(kinds, list) or len(cast("list[object]", kinds)) != layers:
            keys.refuse("layer_types", f"a list of num_hidden_layers = {layers} entries")
        for number, kind in enumerate(cast("list[object]", kinds)):
            if kind != "full_attention":
                name = f"layer_types[{number}]"
                Keys(keys.path, {name: kind}).refuse(name, '"full_attention": sliding windows are not supported', fix)
    elif keys.flag("use_sliding_window", False) and keys.get("sliding_window") is not None:
        first = keys.integer("max_window_layers", 0, HIGHEST["num_hidden_layers"], 28)
        if first < layers:
            keys.refuse("use_sliding_window", f"false: layers from {first} on would slide, which is not supported", fix)


def _rope(keys: Keys) -> Keys:
    """The keys that contain `rope_theta`; ModelError if positions are scaled."""
    fix = "remove it for the plain context of max_position_embeddings, or give another model"
    if keys.get("rope_scaling") is not None:
        keys.refuse("rope_scaling", "null: scaled positions are not supported", fix)
    rope = rope_keys(keys)
    if rope.get("rope_type") not in (None, "default"):
        rope.refuse("rope_type", '"default": scaled positions are not supported', fix)
    return keys if rope.get("rope_theta") is None else rope
