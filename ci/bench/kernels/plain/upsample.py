"""Bilinear upsampling by 2 of each plane, as torch with align_corners=False."""

from typing import Literal

import tilec as tl


class E(tl.Element):
    """bf16, f16 or f32"""


class P(tl.Dim):
    """planes, N * C"""


class H(tl.Dim):
    """rows of the input"""


class W(tl.Dim):
    """columns of the input"""


@tl.function
def ends(at, size):
    """The two source positions of output positions, and the weight of the second."""
    first = tl.clamp((at - 1) // 2, 0, size - 1)
    second = tl.minimum((at + 1) // 2, size - 1)
    return first, second, tl.where(at % 2 == 0, 0.75, 0.25)


@tl.kernel
def upsample(
    x: tl.In[E, P, H, W],
    out: tl.Out[E, P, Literal["2 * H"], Literal["2 * W"]],
    *,
    E: tl.Const,
    BY: tl.Const,
    BX: tl.Const,
):
    tl.grid(tl.cdiv(2 * W, BX), tl.cdiv(2 * H, BY), P)
    j, i, p = tl.bid(0), tl.bid(1), tl.bid(2)
    y0, y1, fy = ends((i * BY + tl.arange(BY))[:, None], H)
    x0, x1, fx = ends((j * BX + tl.arange(BX))[None, :], W)
    a = tl.gather(x, (p, y0, x0)).astype(tl.f32)
    b = tl.gather(x, (p, y0, x1)).astype(tl.f32)
    c = tl.gather(x, (p, y1, x0)).astype(tl.f32)
    d = tl.gather(x, (p, y1, x1)).astype(tl.f32)
    top = a + fx * (b - a)
    bottom = c + fx * (d - c)
    tl.store(out, (p, i, j), (top + fy * (bottom - top)).astype(E)[None, :, :], mask=True)
