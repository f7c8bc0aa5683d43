"""Embedding lookup: one table row per token id."""

import tilec
from tilec import Const, Dim, Element, In, Out, bid, cdiv, grid, i32, load, store, values


class E(Element):
    """bf16 or f16"""


class T(Dim):
    """number of tokens"""


class V(Dim):
    """vocabulary size"""


class H(Dim):
    """hidden size"""


@tilec.kernel
def embedding(ids: In[i32, T], table: In[E, V, H], out: Out[E, T, H], *, E: Const, H: Const, BLOCK: Const):
    """`out[t] = table[ids[t]]`; every id is checked to be below V where it enters the program, not here."""
    grid(T, cdiv(H, BLOCK))
    values(ids, 0, V)
    token, part = bid(0), bid(1)
    row = load(table, offset=(load(ids, token), part * BLOCK), shape=(1, BLOCK), pad=0)
    store(out, (token, part), row, mask=True)
