"""Embedding lookup: one table row per token id."""

import tilec as tl

from .dims import E, H, T, V


@tl.kernel
def embedding(ids: tl.In[tl.i32, T], table: tl.In[E, V, H], out: tl.Out[E, T, H], *, E: tl.Const, H: tl.Const, BLOCK: tl.Const):
    """`out[t] = table[ids[t]]`; every id is checked to be below V where it enters the program, not here."""
    tl.grid(T, tl.cdiv(H, BLOCK))
    tl.values(ids, 0, V)
    token, part = tl.bid(0), tl.bid(1)
    row = tl.load(table, offset=(tl.load(ids, token), part * BLOCK), shape=(1, BLOCK), pad=0)
    tl.store(out, (token, part), row, mask=True)
