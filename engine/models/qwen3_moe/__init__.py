"""Qwen3 mixtures of experts: config and step; positions and tokenizer are those of dense Qwen3 models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from engine.models import dense
from engine.models.family import Family
from engine.models.qwen3.rope import frequencies
from engine.models.qwen3_moe.config import MIXTURES, Qwen3MoeConfig
from engine.text.policy import POLICIES
from tilec.step.step import CHUNK_TOKENS

SIZES: Final = (
    "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "num_hidden_layers", "vocab_size", "num_experts",
    "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob",
)  # fmt: skip
"""Numbers of config.json that determine which kernels the step needs."""

OF_DENSE_LAYERS: Final = ("dense_layers", "intermediate_size")
"""Those of a model that has dense layers too: which layers these are, and their size."""

UNMEASURED: Final[Mapping[str, int]] = {
    **dense.UNMEASURED,
    "some_tokens": 32, "chunk_tokens": CHUNK_TOKENS,
}  # fmt: skip
"""As `dense.UNMEASURED`."""

FAMILY: Final = Family(
    package=__name__, model_type=Qwen3MoeConfig.model_type, models=MIXTURES, config=Qwen3MoeConfig.read,
    frequencies=frequencies, tokenizer=POLICIES[Qwen3MoeConfig.model_type], sizes=SIZES,
    numbers=(*SIZES, "rms_norm_eps"), unmeasured=UNMEASURED, refused={}, kinds=OF_DENSE_LAYERS,
)  # fmt: skip
