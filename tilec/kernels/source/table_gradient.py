"""Gradient of a table of which rows were taken."""

from typing import Literal

import tilec as tl


class E(tl.Element):
    """bf16, f16 or f32"""


class N(tl.Dim):
    """rows that were taken"""


class V(tl.Dim):
    """rows of the table"""


class B(tl.Dim):
    """rows of the result"""


class H(tl.Dim):
    """elements of a row"""


@tl.kernel
def table_gradient(
    dout: tl.In[E, B, H],
    scales: tl.In[tl.f32, B],
    rows: tl.In[tl.i32, N],
    starts: tl.In[tl.i32, Literal["V + 1"]],
    dtable: tl.Out[E, V, H],
    *,
    E: tl.Const,
    ROWS: tl.Const,
    BLOCK: tl.Const,
    MULTIPLE: tl.Const,
):
    """`dtable[v]` is the sum of `scales[b] * dout[b]` over the rows `b = rows[i]`, i from `starts[v]` to below `starts[v + 1]`;
    in f32 and in a fixed order, rounded once. A block adds BLOCK elements of ROWS rows at a time."""
    tl.requires(H % MULTIPLE == 0)
    tl.requires(N <= 1073741824)
    tl.grid(V, tl.cdiv(H, BLOCK))
    v, part = tl.bid(0), tl.bid(1)
    begin = tl.minimum(tl.maximum(tl.load(starts, v), 0), N)
    end = tl.minimum(tl.maximum(tl.load(starts, v + 1), 0), N)
    columns = part * BLOCK + tl.arange(BLOCK)
    total = tl.zeros((ROWS, BLOCK), tl.f32)
    for j in range(tl.cdiv(end - begin, ROWS)):
        i = begin + j * ROWS + tl.arange(ROWS)
        row = tl.gather(rows, tl.where(i < end, i, N), pad=-1)
        scale = tl.gather(scales, row, pad=0)
        total = total + tl.gather(dout, (row[:, None], columns[None, :]), pad=0).astype(tl.f32) * scale[:, None]
    tl.store(dtable, (v, part), tl.sum(total, axis=0).astype(E)[None, :], mask=True)
