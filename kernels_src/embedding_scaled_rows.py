"""Embedding lookup of a token of each sequence with the first norm begun, as `matvec_add_scaled_rows` does it."""

from typing import Literal

import tilec
from tilec import Const, Dim, Element, In, Out, astype, bid, f32, grid, i32, load, reshape, store, sum, values


class E(Element):
    """bf16 or f16"""


class B(Dim):
    """rows, one of each sequence"""


class V(Dim):
    """vocabulary size"""


class H(Dim):
    """hidden size"""


@tilec.kernel
def embedding_scaled_rows(
    ids: In[i32, B],
    table: In[E, V, H],
    weight: In[E, H],
    out: Out[E, B, H],
    scaled: Out[E, B, H],
    squares: Out[f32, B, Literal["H // 16"]],
    *,
    E: Const,
    H: Const,
):
    """For each row `out = table[ids]`, `scaled = out * weight`, and the sum of squares of each 16 elements of `out`."""
    grid(B)
    values(ids, 0, V)
    b = bid(0)
    row = load(table, (load(ids, b), 0), shape=(1, H))
    store(out, (b, 0), row)
    v = row.astype(f32)
    store(scaled, (b, 0), astype(v * load(weight, 0, shape=H).astype(f32)[None, :], E))
    store(squares, (b, 0), sum(reshape(v * v, (1, H // 16, 16)), axis=2))
