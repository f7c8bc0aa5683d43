"""Embedding lookup of one token with the first norm begun, as `matvec_add_scaled` does it."""

from typing import Literal

import tilec as tl

from .dims import E, H, V


@tl.kernel
def embedding_scaled(
    ids: tl.In[tl.i32, Literal[1]],
    table: tl.In[E, V, H],
    weight: tl.In[E, H],
    out: tl.Out[E, Literal[1], H],
    scaled: tl.Out[E, Literal[1], H],
    squares: tl.Out[tl.f32, Literal[1], Literal["H // 4"]],
    *,
    E: tl.Const,
    H: tl.Const,
):
    """`out = table[ids]`, `scaled = out * weight`, and the sum of squares of each four elements of `out`."""
    tl.grid(1)
    tl.values(ids, 0, V)
    row = tl.load(table, (tl.load(ids, 0), 0), shape=(1, H))
    tl.store(out, (0, 0), row)
    v = row.astype(tl.f32)
    tl.store(scaled, (0, 0), tl.astype(v * tl.load(weight, 0, shape=H).astype(tl.f32)[None, :], E))
    tl.store(squares, (0, 0), tl.sum(tl.reshape(v * v, (1, H // 4, 4)), axis=2))
