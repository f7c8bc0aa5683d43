"""Reads `config.json` of a Qwen3 mixture of experts.

Keys and defaults are those of `Qwen3MoeConfig` in transformers; what dense models have too is read as theirs. The number of
experts is `num_experts`, or `num_local_experts` as transformers 5 writes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from engine.models.config import HIGHEST, check_heads
from engine.models.keys import Keys
from engine.models.qwen3.config import Qwen3Config, common

MIXTURES: Final = "a Qwen3 mixture of experts (30B-A3B, 235B-A22B)"
OTHER_MODEL: Final = f"give a folder of {MIXTURES}"

MOST_EXPERTS: Final = 1 << 10
"""Most experts of a layer: as many items as a step's weight can stack."""


@dataclass(frozen=True, slots=True)
class Qwen3MoeConfig(Qwen3Config):
    """A Qwen3 mixture whose layers all have experts. A token has `num_experts_per_tok` of `num_experts`, whose weights sum to
    one if `norm_topk_prob`. No layer uses `intermediate_size`."""

    model_type: ClassVar[str] = "qwen3_moe"

    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    norm_topk_prob: bool

    @classmethod
    def read(cls, keys: Keys) -> Qwen3MoeConfig:
        """The config from the keys of a file; ModelError if it is damaged or of an unsupported model."""
        shared = common(keys, "Qwen3MoeForCausalLM", OTHER_MODEL)
        if keys.get("use_sliding_window") and keys.get("sliding_window") is not None:  # of every layer, unlike dense models
            keys.refuse("use_sliding_window", "false: sliding windows are not supported", OTHER_MODEL)
        _refuse_dense_layers(keys)
        experts = _experts(keys)
        config = cls(
            **shared, num_experts=experts, num_experts_per_tok=keys.integer("num_experts_per_tok", 1, experts),
            moe_intermediate_size=keys.integer("moe_intermediate_size", 1, HIGHEST["intermediate_size"]),
            norm_topk_prob=keys.flag("norm_topk_prob", False),
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


def _refuse_dense_layers(keys: Keys) -> None:
    """ModelError if a layer has no experts, or something next to them."""
    if keys.get("mlp_only_layers") not in (None, []):
        keys.refuse("mlp_only_layers", "[]: models with dense layers between those of experts are not supported", OTHER_MODEL)
    if keys.get("decoder_sparse_step") is not None and keys.integer("decoder_sparse_step", 1, 1 << 12) != 1:
        keys.refuse(
            "decoder_sparse_step", "1: models with dense layers between those of experts are not supported", OTHER_MODEL
        )
    if keys.get("shared_expert_intermediate_size") not in (None, 0):
        keys.refuse("shared_expert_intermediate_size", "absent: shared experts are not supported", OTHER_MODEL)
