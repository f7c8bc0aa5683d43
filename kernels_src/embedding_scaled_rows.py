"""Embedding lookup of a token of each sequence with the first norm begun, as `matvec_add_scaled_rows` does it."""

from typing import Literal

import tilec as tl

from .dims import B, E, H, V


@tl.kernel
def embedding_scaled_rows(
    ids: tl.In[tl.i32, B],
    table: tl.In[E, V, H],
    weight: tl.In[E, H],
    out: tl.Out[E, B, H],
    scaled: tl.Out[E, B, H],
    squares: tl.Out[tl.f32, B, Literal["H // 16"]],
    *,
    E: tl.Const,
    H: tl.Const,
):
    """For each row `out = table[ids]`, `scaled = out * weight`, and the sum of squares of each 16 elements of `out`."""
    tl.grid(B)
    tl.values(ids, 0, V)
    b = tl.bid(0)
    row = tl.load(table, (tl.load(ids, b), 0), shape=(1, H))
    tl.store(out, (b, 0), row)
    v = row.astype(tl.f32)
    tl.store(scaled, (b, 0), tl.astype(v * tl.load(weight, 0, shape=H).astype(tl.f32)[None, :], E))
    tl.store(squares, (b, 0), tl.sum(tl.reshape(v * v, (1, H // 16, 16)), axis=2))
