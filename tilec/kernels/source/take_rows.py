"""Rows of a table by number."""

import tilec as tl


class E(tl.Element):
    """bf16, f16 or f32"""


class L(tl.Element):
    """i32 or i64"""


class N(tl.Dim):
    """numbers"""


class V(tl.Dim):
    """rows of the table"""


class H(tl.Dim):
    """elements of a row"""


@tl.kernel
def take_rows(
    ids: tl.In[L, N],
    table: tl.In[E, V, H],
    out: tl.Out[E, N, H],
    *,
    E: tl.Const,
    L: tl.Const,
    BLOCK: tl.Const,
    MULTIPLE: tl.Const,
):
    """`out[i] = table[ids[i]]`, 0 where the table has no such row. A block takes BLOCK elements of a row."""
    tl.requires(H % MULTIPLE == 0)
    tl.grid(N, tl.cdiv(H, BLOCK))
    i, part = tl.bid(0), tl.bid(1)
    tl.store(out, (i, part), tl.load(table, (tl.load(ids, i), part), shape=(1, BLOCK), pad=0), mask=True)
