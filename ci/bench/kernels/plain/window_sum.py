"""Sum of each window of W neighbours of a row."""

from typing import Literal

import tilec as tl


class T(tl.Dim):
    """rows"""


class N(tl.Dim):
    """elements of a row"""


class W(tl.Dim):
    """elements of a window"""


@tl.kernel
def window_sum(
    x: tl.In[tl.f32, T, N],
    out: tl.Out[tl.f32, T, Literal["N - W + 1"]],
    W: tl.i32,
    *,
    BLOCK: tl.Const,
):
    """`out[t, i] = sum(x[t, i : i + W])`"""
    tl.requires(W >= 1, W <= N)
    tl.grid(T, tl.cdiv(N - W + 1, BLOCK))
    row, j = tl.bid(0), tl.bid(1)
    total = tl.zeros((1, BLOCK), tl.f32)
    for k in range(W):
        total += tl.load(x, offset=(row, j * BLOCK + k), shape=(1, BLOCK), pad=0)
    tl.store(out, (row, j), total, mask=True)
