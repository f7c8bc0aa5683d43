"""Rows of a table by i64 indices; zeros where the index is outside."""

import tilec as tl


class T(tl.Dim):
    """indices"""


class S(tl.Dim):
    """rows of the table"""


class D(tl.Dim):
    """elements of a row"""


@tl.kernel
def gather_rows(table: tl.In[tl.f32, S, D], ids: tl.In[tl.i64, T], out: tl.Out[tl.f32, T, D], *, D: tl.Const, ROWS: tl.Const):
    tl.grid(tl.cdiv(T, ROWS))
    i = tl.bid(0)
    at = tl.load(ids, i, shape=ROWS, pad=-1)
    tl.store(out, (i, 0), tl.gather(table, (at[:, None], tl.arange(D)[None, :]), pad=0), mask=True)
