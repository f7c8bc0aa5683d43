"""Normalise and rotate heads: what query and key heads of Qwen3 share between projection and attention."""

import tilec
from tilec import Tile, f32, rsqrt, sum


@tilec.function
def normed_scale(low: Tile, high: Tile, width: int, eps: f32) -> Tile:
    """One factor per head, `1 / sqrt(mean(x^2) + eps)`, from the halves of the heads; (1, G, D / 2) each -> (1, G, 1)."""
    return rsqrt((sum(low * low, axis=2) + sum(high * high, axis=2)) / width + eps)[:, :, None]


@tilec.function
def rotated_low(low: Tile, high: Tile, cos: Tile, sin: Tile) -> Tile:
    """First half of rotate-half rotary embedding (Su et al., RoFormer, 2021; GPT-NeoX order)."""
    return low * cos - high * sin


@tilec.function
def rotated_high(low: Tile, high: Tile, cos: Tile, sin: Tile) -> Tile:
    """Second half."""
    return high * cos + low * sin
