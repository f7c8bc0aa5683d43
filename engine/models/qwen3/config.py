"""Reads `config.json` of a dense Qwen3 model.

Keys and defaults are those of `Qwen3Config` in transformers. Files written by transformers 5 are read too: they have `dtype`
for `torch_dtype`, and `rope_parameters` for `rope_theta` and `rope_scaling`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Final, cast

from engine.models.config import HIGHEST, ModelConfig, torch_dtype
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
        _refuse_other_models(keys)
        rope = _rope(keys)
        config = cls(
            **{name: keys.integer(name, 1, highest) for name, highest in HIGHEST.items()},
            rms_norm_eps=keys.number("rms_norm_eps", 0.0, 1.0),
            rope_theta=rope.number("rope_theta", 0.0, math.inf),
            tie_word_embeddings=keys.flag("tie_word_embeddings", False),
            torch_dtype=torch_dtype(keys),
        )
        _refuse_sliding_window(keys, config.num_hidden_layers)
        if config.num_attention_heads % config.num_key_value_heads:
            keys.refuse("num_key_value_heads", f"a divisor of num_attention_heads = {config.num_attention_heads}")
        if config.head_dim % 2:
            keys.refuse("head_dim", "even: rotary embedding turns halves of a head")
        return config


def _refuse_other_models(keys: Keys) -> None:
    """ModelError unless the keys describe a dense Qwen3 model in everything that affects the computation."""
    architectures = keys.get("architectures")
    if architectures is not None and architectures != ["Qwen3ForCausalLM"]:
        names = cast("list[object]", architectures) if isinstance(architectures, list) else []
        if len(names) == 1:
            Keys(keys.path, {"architectures[0]": names[0]}).refuse("architectures[0]", '"Qwen3ForCausalLM"', OTHER_MODEL)
        keys.refuse("architectures", '["Qwen3ForCausalLM"]', OTHER_MODEL)
    for key in ("num_experts", "quantization_config"):
        if keys.get(key) is not None:
            kind = "mixtures of experts" if key == "num_experts" else "quantised weights"
            keys.refuse(key, f"absent: {kind} are not supported", OTHER_MODEL)
    if keys.get("hidden_act") not in (None, "silu"):
        keys.refuse("hidden_act", '"silu"', OTHER_MODEL)
    if keys.flag("attention_bias", False):
        keys.refuse("attention_bias", "false: projections with a bias are not supported", OTHER_MODEL)


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
    rope = keys
    parameters = keys.get("rope_parameters")
    if parameters is not None:
        if not isinstance(parameters, dict):
            keys.refuse("rope_parameters", "an object")
        rope = Keys(keys.path, cast("dict[str, object]", parameters), "rope_parameters.")
        if rope.get("rope_type") not in (None, "default"):
            rope.refuse("rope_type", '"default": scaled positions are not supported', fix)
        if rope.get("rope_theta") is None:
            rope = keys
    scaling = keys.get("rope_scaling")
    if scaling is not None:
        keys.refuse("rope_scaling", "null: scaled positions are not supported", fix)
    return rope
