"""Rotary position embedding (Su and others, RoFormer, 2021), rotating halves as in Llama and Qwen3."""

from typing import Literal

import tilec as tl


class E(tl.Element):
    """bf16, f16 or f32"""


class B(tl.Dim):
    """sequences"""


class P(tl.Dim):
    """positions"""


class H(tl.Dim):
    """heads"""


class D(tl.Dim):
    """elements of a head"""


@tl.kernel
def rope(
    x: tl.In[E, B, P, H, D],
    cos: tl.In[tl.f32, P, Literal["D // 2"]],
    sin: tl.In[tl.f32, P, Literal["D // 2"]],
    out: tl.Out[E, B, P, H, D],
    sign: tl.f32,
    *,
    E: tl.Const,
    D: tl.Const,
    POSITIONS: tl.Const,
    HEADS: tl.Const,
):
    """Rotate each pair `(x[..., i], x[..., D // 2 + i])` by the angle i of its position, whose `cos` and `sin` are given. With
    sign 1; with -1 by the negative angle, which is the gradient. A block computes HEADS heads of POSITIONS positions."""
    assert D % 2 == 0
    groups = tl.cdiv(H, HEADS)
    tl.grid(tl.cdiv(P, POSITIONS) * groups, B)
    i, h, b = tl.bid(0) // groups, tl.bid(0) % groups, tl.bid(1)
    c = tl.load(cos, (i, 0), shape=(POSITIONS, D // 2), pad=0)[None, :, None, :]
    s = tl.load(sin, (i, 0), shape=(POSITIONS, D // 2), pad=0)[None, :, None, :] * sign
    low = tl.load(x, (b, i, h, 0), shape=(1, POSITIONS, HEADS, D // 2), pad=0).astype(tl.f32)
    high = tl.load(x, (b, i, h, 1), shape=(1, POSITIONS, HEADS, D // 2), pad=0).astype(tl.f32)
    tl.store(out, (b, i, h, 0), (low * c - high * s).astype(E), mask=True)
    tl.store(out, (b, i, h, 1), (high * c + low * s).astype(E), mask=True)
