"""Sums of the rows of a table that bags of numbers name."""

from bags import END, B, within

import tilec as tl


class E(tl.Element):
    """bf16, f16 or f32"""


class L(tl.Element):
    """i32 or i64"""


class N(tl.Dim):
    """numbers of all bags"""


class V(tl.Dim):
    """rows of the table"""


class H(tl.Dim):
    """elements of a row"""


@tl.kernel
def embedding_bag(
    ids: tl.In[L, N],
    offsets: tl.In[tl.i32, B],
    scales: tl.In[tl.f32, B],
    table: tl.In[E, V, H],
    out: tl.Out[E, B, H],
    *,
    E: tl.Const,
    L: tl.Const,
    BLOCK: tl.Const,
    MULTIPLE: tl.Const,
):
    """`out[b]` is `scales[b]` times the sum of the rows of bag b, in f32 and in their order, rounded once; rows that the table
    does not have are 0. A block adds BLOCK elements of rows."""
    tl.requires(H % MULTIPLE == 0)
    tl.requires(N <= 1073741824)
    tl.grid(B, tl.cdiv(H, BLOCK))
    b, part = tl.bid(0), tl.bid(1)
    begin, end = within(tl.load(offsets, b), N), within(tl.load(offsets, b + 1, pad=END), N)
    total = tl.zeros((1, BLOCK), tl.f32)
    for i in range(begin, end):
        total = total + tl.load(table, (tl.load(ids, i), part), shape=(1, BLOCK), pad=0).astype(tl.f32)
    tl.store(out, (b, part), (total * tl.load(scales, b)).astype(E), mask=True)
