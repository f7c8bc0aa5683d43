"""Positions of Qwen3, which are not scaled."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.models.config import ModelConfig
from engine.models.rope import plain_frequencies


def frequencies(config: ModelConfig) -> NDArray[np.float32]:
    """The frequencies of rotary position embeddings, (head_dim / 2,)."""
    return plain_frequencies(config.head_dim, config.rope_theta)
