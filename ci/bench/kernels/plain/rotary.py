"""Rotary embedding of interleaved pairs."""

from typing import Literal

import tilec as tl


class E(tl.Element):
    """bf16 or f16"""


class T(tl.Dim):
    """tokens"""


class H(tl.Dim):
    """heads"""


class D(tl.Dim):
    """elements of a head"""


class P(tl.Dim):
    """rows of the tables"""


@tl.kernel
def rotary(
    x: tl.In[E, T, H, D],
    positions: tl.In[tl.i32, T],
    cos: tl.In[tl.f32, P, Literal["D // 2"]],
    sin: tl.In[tl.f32, P, Literal["D // 2"]],
    out: tl.Out[E, T, H, D],
    *,
    E: tl.Const,
    H: tl.Const,
    D: tl.Const,
):
    """Elements 2 i and 2 i + 1 of a head turn by the angle i of the token's position."""
    assert D % 2 == 0
    tl.values(positions, 0, P)
    tl.grid(T)
    t = tl.bid(0)
    p = tl.load(positions, t)
    c = tl.load(cos, (p, 0), shape=(1, D // 2))
    s = tl.load(sin, (p, 0), shape=(1, D // 2))
    a, b = tl.split(tl.load(x, (t, 0, 0), shape=(1, H, D)).astype(tl.f32).reshape((H, D // 2, 2)))
    turned = tl.join(a * c - b * s, a * s + b * c)
    tl.store(out, (t, 0, 0), turned.astype(E).reshape((1, H, D)))
