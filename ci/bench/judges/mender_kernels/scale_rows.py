"""Each row times a factor of its own; a block has several rows and part of the columns."""

import tilec
from tilec import Const, Dim, In, Out, bid, cdiv, f32, grid, load, store


class R(Dim):
    """rows"""


class C(Dim):
    """columns"""


@tilec.kernel
def scale_rows(x: In[f32, R, C], factor: In[f32, R], out: Out[f32, R, C], *, ROWS: Const, BLOCK: Const):
    """`out[r, c] = factor[r] * x[r, c]`."""
    grid(cdiv(C, BLOCK), cdiv(R, ROWS))
    part, rows = bid(0), bid(1)
    tile = load(x, offset=(rows * ROWS, part * BLOCK), shape=(ROWS, BLOCK), pad=0)
    scale = load(factor, rows, shape=ROWS, pad=0)
    store(out, tile * scale[:, None], offset=(rows * ROWS, part * BLOCK), mask=True)
