"""The table of rotary position embeddings (Su et al., RoFormer), shared by all steps of a model; a family has frequencies."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def plain_frequencies(head_dim: int, theta: float) -> NDArray[np.float32]:
    """The `head_dim / 2` frequencies of positions that are not scaled, computed as in transformers, in f32."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    return (1.0 / np.power(np.float32(theta), exponents, dtype=np.float32)).astype(np.float32)


def rope_table(positions: int, frequencies: NDArray[np.float32]) -> NDArray[np.float32]:
    """Cosines, then sines, of each position's angles, (positions, head_dim); products with positions are in f32."""
    angles = np.arange(positions, dtype=np.float32)[:, None] * frequencies[None, :]
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
