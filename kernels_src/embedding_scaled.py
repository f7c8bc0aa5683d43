"""Embedding lookup of one token with the first norm begun, as `matvec_add_scaled` does it."""

from typing import Literal

import tilec
from tilec import Const, Dim, Element, In, Out, astype, f32, grid, i32, load, reshape, store, sum, values


class E(Element):
    """bf16 or f16"""


class V(Dim):
    """vocabulary size"""


class H(Dim):
    """hidden size"""


@tilec.kernel
def embedding_scaled(
    ids: In[i32, Literal[1]],
    table: In[E, V, H],
    weight: In[E, H],
    out: Out[E, Literal[1], H],
    scaled: Out[E, Literal[1], H],
    squares: Out[f32, Literal[1], Literal["H // 4"]],
    *,
    E: Const,
    H: Const,
):
    """`out = table[ids]`, `scaled = out * weight`, and the sum of squares of each four elements of `out`."""
    grid(1)
    values(ids, 0, V)
    row = load(table, (load(ids, 0), 0), shape=(1, H))
    store(out, (0, 0), row)
    v = row.astype(f32)
    store(scaled, (0, 0), astype(v * load(weight, 0, shape=H).astype(f32)[None, :], E))
    store(squares, (0, 0), sum(reshape(v * v, (1, H // 4, 4)), axis=2))
