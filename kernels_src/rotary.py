"""Normalise and rotate heads: what query and key heads of Qwen3 share between projection and attention."""

import tilec as tl


@tl.function
def normed_scale(low: tl.Tile, high: tl.Tile, width: int, eps: tl.f32) -> tl.Tile:
    """One factor per head, `1 / sqrt(mean(x^2) + eps)`, from the halves of the heads; (1, G, D / 2) each -> (1, G, 1)."""
    return tl.rsqrt((tl.sum(low * low, axis=2) + tl.sum(high * high, axis=2)) / width + eps, fast=True)[:, :, None]


@tl.function
def rotated_low(low: tl.Tile, high: tl.Tile, cos: tl.Tile, sin: tl.Tile) -> tl.Tile:
    """First half of rotate-half rotary embedding (Su et al., RoFormer, 2021; GPT-NeoX order)."""
    return low * cos - high * sin


@tl.function
def rotated_high(low: tl.Tile, high: tl.Tile, cos: tl.Tile, sin: tl.Tile) -> tl.Tile:
    """Second half."""
    return high * cos + low * sin
