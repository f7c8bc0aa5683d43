"""Sums of all elements of a row up to each."""

import tilec as tl


class E(tl.Element):
    """bf16, f16 or f32"""


class T(tl.Dim):
    """number of rows"""


class N(tl.Dim):
    """elements of a row"""


@tl.kernel
def cumsum(
    x: tl.In[E, T, N],
    out: tl.Out[E, T, N],
    reverse: tl.i32,
    *,
    E: tl.Const,
    REVERSE: tl.Const,
    ROWS: tl.Const,
    BLOCK: tl.Const,
    MULTIPLE: tl.Const,
):
    """`out[t, j] = sum(x[t, : j + 1])`, or `sum(x[t, j:])` with REVERSE, in f32, rounded once. `reverse` is REVERSE, 0 or 1. A
    block takes ROWS rows of one tile of BLOCK elements, or one row, a tile at a time."""
    tl.requires(N % MULTIPLE == 0 and N <= 1073741824 and reverse == REVERSE)
    tl.requires(ROWS == 1 or N <= BLOCK)
    tl.grid(tl.cdiv(T, ROWS))
    rows, tiles = tl.bid(0), tl.cdiv(N, BLOCK)
    if ROWS > 1:
        v = tl.load(x, (rows, 0), shape=(ROWS, BLOCK), pad=0).astype(tl.f32)
        tl.store(out, (rows, 0), tl.cumsum(v, 1, reverse=REVERSE == 1).astype(E), mask=True)
    else:
        before = tl.zeros((1, 1), tl.f32)
        for j in range(tiles):
            tile = tiles - 1 - j if REVERSE else j
            v = tl.load(x, (rows, tile), shape=(1, BLOCK), pad=0).astype(tl.f32)
            tl.store(out, (rows, tile), (before + tl.cumsum(v, 1, reverse=REVERSE == 1)).astype(E), mask=True)
            before = before + tl.sum(v, axis=1, keepdims=True)
