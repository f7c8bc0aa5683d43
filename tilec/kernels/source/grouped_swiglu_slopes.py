"""Gradient of `silu(gate) * up` with respect to both, which lie next to each other in rows."""

from typing import Literal

from grouped_parts import LIMIT, E, N, T

import tilec as tl


@tl.kernel
def grouped_swiglu_slopes(
    both: tl.In[E, T, Literal[2], N],
    dout: tl.In[E, T, N],
    slopes: tl.Out[E, T, Literal[2], N],
    *,
    E: tl.Const,
    ROWS: tl.Const,
    BLOCK: tl.Const,
):
    """`both[:, 0]` is gate, `both[:, 1]` up; of `slopes` their gradients, in f32, rounded once."""
    tl.requires(N % 8 == 0, T <= LIMIT)
    columns = tl.cdiv(N, BLOCK)
    tl.grid(tl.cdiv(T, ROWS) * columns)
    tl.requires(tl.cdiv(T, ROWS) * columns <= 2147483647)
    i, j = tl.bid(0) // columns, tl.bid(0) % columns
    gate = tl.load(both, (i, 0, j), shape=(ROWS, 1, BLOCK), pad=0).astype(tl.f32)
    up = tl.load(both, (i, 1, j), shape=(ROWS, 1, BLOCK), pad=0).astype(tl.f32)
    grad = tl.reshape(tl.load(dout, (i, j), shape=(ROWS, BLOCK), pad=0), (ROWS, 1, BLOCK)).astype(tl.f32)
    share = tl.sigmoid(gate, fast=True)
    tl.store(slopes, (i, 0, j), (grad * up * share * (1.0 + gate * (1.0 - share))).astype(E), mask=True)
    tl.store(slopes, (i, 1, j), (grad * gate * share).astype(E), mask=True)
