"""Reads `config.json` of a Qwen3 mixture of experts.

Keys and defaults are those of `Qwen3MoeConfig` in transformers; what dense models have too is read as theirs. The number of
experts is `num_experts`, or `num_local_experts` as transformers 5 writes it. Which layers have experts is the rule of
`Qwen3MoeDecoderLayer` there: each layer of `decoder_sparse_step`, counted from 1, that `mlp_only_layers`, counted from 0, does
not list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, cast

from engine.models.config import HIGHEST, check_heads
from engine.models.keys import Keys
from engine.models.qwen3.config import Qwen3Config, common

MIXTURES: Final = "a Qwen3 mixture of experts (30B-A3B, 235B-A22B)"
OTHER_MODEL: Final = f"give a folder of {MIXTURES}"

MOST_EXPERTS: Final = 1 << 10
"""Most experts of a layer: as many items as a step's weight can stack."""


@dataclass(frozen=True, slots=True)
class Qwen3MoeConfig(Qwen3Config):
    """A Qwen3 mixture. A token has `num_experts_per_tok` of `num_experts`, whose weights sum to one if `norm_topk_prob`.
    `dense_layers`: the layers without experts, which have `intermediate_size` instead, as text for the step: "0,3". Empty if
    all have experts, and then nothing uses `intermediate_size`."""

    model_type: ClassVar[str] = "qwen3_moe"

    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    norm_topk_prob: bool
    dense_layers: str = ""

    @classmethod
    def read(cls, keys: Keys) -> Qwen3MoeConfig:
        """The config from the keys of a file; ModelError if it is damaged or of an unsupported model."""
        shared = common(keys, "Qwen3MoeForCausalLM", OTHER_MODEL)
        if keys.get("use_sliding_window") and keys.get("sliding_window") is not None:  # of every layer, unlike dense models
            keys.refuse("use_sliding_window", "false: sliding windows are not supported", OTHER_MODEL)
        if keys.get("shared_expert_intermediate_size") not in (None, 0):
            keys.refuse("shared_expert_intermediate_size", "absent: shared experts are not supported", OTHER_MODEL)
        experts = _experts(keys)
        config = cls(
            **shared, num_experts=experts, num_experts_per_tok=keys.integer("num_experts_per_tok", 1, experts),
            moe_intermediate_size=keys.integer("moe_intermediate_size", 1, HIGHEST["intermediate_size"]),
            norm_topk_prob=keys.flag("norm_topk_prob", False),
            dense_layers=",".join(map(str, _dense_layers(keys, shared["num_hidden_layers"]))),
        )  # fmt: skip
        check_heads(keys, config)
        return config


def _experts(keys: Keys) -> int:
    """The number of experts; ModelError if its two names give two numbers."""
    local = keys.get("num_local_experts")
    count = keys.integer(
        "num_experts" if local is None or keys.get("num_experts") is not None else "num_local_experts", 1, MOST_EXPERTS
    )
    if local not in (None, count):
        keys.refuse("num_local_experts", f"absent, or num_experts = {count}")
    return count


def _dense_layers(keys: Keys, layers: int) -> list[int]:
    """The layers that have no experts, in order; ModelError for keys that list none of the layers, or all of them."""
    listed = keys.get("mlp_only_layers")
    numbers: list[object] = cast("list[object]", listed) if isinstance(listed, list) else []
    valid = {number for number in numbers if type(number) is int and 0 <= number < layers}  # `isinstance` would accept `True`
    if listed is not None and (not isinstance(listed, list) or len(valid) < len(numbers)):
        keys.refuse("mlp_only_layers", f"a list of different layers from 0 to {layers - 1}")
    every = keys.integer("decoder_sparse_step", 1, HIGHEST["num_hidden_layers"], 1)
    dense = [layer for layer in range(layers) if layer in valid or (layer + 1) % every]
    if len(dense) == layers:
        key = "mlp_only_layers" if len(valid) == layers else "decoder_sparse_step"
        keys.refuse(key, "such that some layer has experts", "give a model with experts, or a dense one as `qwen3`")
    return dense
