"""Positions of Llama 3, whose lower frequencies are divided in models of a long context."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.models.config import ModelConfig
from engine.models.llama.config import LlamaConfig, RopeScaling
from engine.models.rope import plain_frequencies


def frequencies(config: ModelConfig) -> NDArray[np.float32]:
    """The frequencies of rotary position embeddings, (head_dim / 2,)."""
    assert isinstance(config, LlamaConfig)
    plain = plain_frequencies(config.head_dim, config.rope_theta)
    return plain if config.rope_scaling is None else scaled(plain, config.rope_scaling)


def scaled(plain: NDArray[np.float32], scaling: RopeScaling) -> NDArray[np.float32]:
    """Frequencies of a context longer than the original one, as Llama 3.1 scales them (`apply_scaling` of Meta's reference
    code): the lowest are divided by `factor`, the highest stay, and those between are interpolated by the number of turns in
    the original context; (head_dim / 2,), computed in f32."""
    turns = np.float32(scaling.original_max_position_embeddings) * plain / np.float32(2 * np.pi)
    width = np.float32(scaling.high_freq_factor - scaling.low_freq_factor)
    share = np.clip((turns - np.float32(scaling.low_freq_factor)) / width, np.float32(0), np.float32(1))
    return ((1 - share) * plain / np.float32(scaling.factor) + share * plain).astype(np.float32)
