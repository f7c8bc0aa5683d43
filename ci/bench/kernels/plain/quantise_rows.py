"""Quantise rows of bf16 to int8 with one scale a row."""

import tilec as tl


class T(tl.Dim):
    """rows"""


class N(tl.Dim):
    """elements of a row"""


@tl.kernel
def quantise_rows(
    x: tl.In[tl.bf16, T, N],
    q: tl.Out[tl.i8, T, N],
    scale: tl.Out[tl.f32, T],
    *,
    BLOCK: tl.Const,
):
    """`scale = max(abs(x)) / 127`, `q = round(x / scale)`; a row of zeros has scale 0 and zeros."""
    tl.grid(T)
    row = tl.bid(0)
    high = tl.zeros((1, BLOCK), tl.f32)
    for j in range(tl.cdiv(N, BLOCK)):
        v = tl.load(x, (row, j), shape=(1, BLOCK), pad=0).astype(tl.f32)
        high = tl.maximum(high, tl.abs(v))
    s = tl.max(high) / 127.0
    tl.store(scale, row, s)
    divisor = tl.where(s > 0, s, 1.0)
    for j in range(tl.cdiv(N, BLOCK)):
        v = tl.load(x, (row, j), shape=(1, BLOCK), pad=0).astype(tl.f32)
        tl.store(q, (row, j), tl.clamp(tl.round(v / divisor), -127, 127).astype(tl.i8), mask=True)
