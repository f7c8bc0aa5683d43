"""Rows in order, and where their elements were: short rows, each in one tile."""

from order import E, N, T, of_key, sorted_tile

import tilec as tl


@tl.kernel
def sort(
    x: tl.In[E, T, N],
    out: tl.Out[E, T, N],
    positions: tl.Out[tl.i32, T, N],
    descending: tl.i32,
    *,
    E: tl.Const,
    ROWS: tl.Const,
    BLOCK: tl.Const,
    MULTIPLE: tl.Const,
):
    """`out[t, j] = x[t, positions[t, j]]`, ascending, or descending if `descending` is 1, not 0.

    Equal elements keep their order, and NaN is above all numbers. A block sorts ROWS rows of at most BLOCK elements."""
    tl.requires(N <= BLOCK and N % MULTIPLE == 0)
    tl.requires(descending == 0 or descending == 1)
    tl.grid(tl.cdiv(T, ROWS))
    rows = tl.bid(0)
    keys, columns = sorted_tile(x, rows, 0, descending, ROWS, BLOCK)
    tl.store(out, (rows, 0), of_key(keys, descending).astype(E), mask=True)
    tl.store(positions, (rows, 0), columns, mask=True)
