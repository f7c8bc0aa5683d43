"""Elements of each row at given columns."""

import tilec as tl


class E(tl.Element):
    """bf16, f16, f32 or i32"""


class T(tl.Dim):
    """number of rows"""


class N(tl.Dim):
    """elements of a row"""


class K(tl.Dim):
    """elements taken of a row"""


@tl.kernel
def take_columns(x: tl.In[E, T, N], columns: tl.In[tl.i32, T, K], out: tl.Out[E, T, K], *, E: tl.Const, BLOCK: tl.Const):
    """`out[t, k] = x[t, columns[t, k]]`, 0 where there is no such column; a block takes BLOCK elements of a row."""
    tl.requires(K <= 1073741824)
    tiles = tl.cdiv(K, BLOCK)
    tl.grid(tiles * T)
    row, tile = tl.bid(0) // tiles, tl.bid(0) % tiles
    at = tl.load(columns, (row, tile), shape=(1, BLOCK), pad=-1)
    tl.store(out, (row, tile), tl.gather(x, (row, at), pad=0), mask=True)
