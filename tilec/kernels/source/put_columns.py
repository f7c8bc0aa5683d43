"""Elements put to given columns of each row: the gradient of taking them from there."""

import tilec as tl


class E(tl.Element):
    """bf16, f16 or f32"""


class T(tl.Dim):
    """number of rows"""


class N(tl.Dim):
    """elements of a row"""


class K(tl.Dim):
    """elements put into a row"""


@tl.kernel
def put_columns(x: tl.In[E, T, K], columns: tl.In[tl.i32, T, K], out: tl.Atomic[E, T, N], *, E: tl.Const, BLOCK: tl.Const):
    """`out[t, columns[t, k]] += x[t, k]`; where columns of a row are distinct and `out` is 0 before, that is exact."""
    tl.requires(K <= 1073741824)
    tiles = tl.cdiv(K, BLOCK)
    tl.grid(tiles * T)
    row, tile = tl.bid(0) // tiles, tl.bid(0) % tiles
    at = tl.load(columns, (row, tile), shape=(1, BLOCK), pad=-1)
    tl.atomic_add(out, tl.load(x, (row, tile), shape=(1, BLOCK), pad=0), at=(row, at), mask=True)
