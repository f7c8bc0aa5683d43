"""Largest element of each window of each row, and its position."""

from typing import Literal

import tilec as tl


class R(tl.Dim):
    """rows"""


class N(tl.Dim):
    """elements of a row"""


@tl.kernel
def max_pool1d(
    x: tl.In[tl.f32, R, N],
    out: tl.Out[tl.f32, R, Literal["(N - W) // STRIDE + 1"]],
    indices: tl.Out[tl.i32, R, Literal["(N - W) // STRIDE + 1"]],
    *,
    W: tl.Const,
    STRIDE: tl.Const,
    BLOCK: tl.Const,
):
    tl.requires(N >= W)
    outputs = (N - W) // STRIDE + 1
    tl.grid(tl.cdiv(outputs, BLOCK), R)
    i, row = tl.bid(0), tl.bid(1)
    first = (i * BLOCK + tl.arange(BLOCK)) * STRIDE
    best = tl.gather(x, (row, first), pad=-tl.inf)
    at = first
    for w in tl.static_range(1, W):
        v = tl.gather(x, (row, first + w), pad=-tl.inf)
        at = tl.where(v > best, first + w, at)
        best = tl.maximum(best, v)
    tl.store(out, (row, i), best[None, :], mask=True)
    tl.store(indices, (row, i), at[None, :], mask=True)
