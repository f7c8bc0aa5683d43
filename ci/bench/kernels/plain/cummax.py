"""Cumulative maximum along rows, with the index of the last element that is as large."""

import tilec as tl


class T(tl.Dim):
    """rows"""


class N(tl.Dim):
    """elements of a row"""


@tl.function
def later(before, after):
    (v, i), (w, j) = before, after
    newer = w >= v
    return tl.where(newer, w, v), tl.where(newer, j, i)


@tl.kernel
def cummax(
    x: tl.In[tl.f32, T, N],
    top: tl.Out[tl.f32, T, N],
    at: tl.Out[tl.i32, T, N],
    *,
    BLOCK: tl.Const,
):
    tl.grid(T)
    row = tl.bid(0)
    high = tl.full((1, 1), -tl.inf, tl.f32)
    where_high = tl.zeros((1, 1), tl.i32)
    for j in range(tl.cdiv(N, BLOCK)):
        v = tl.load(x, (row, j), shape=(1, BLOCK), pad=-tl.inf)
        positions = (j * BLOCK + tl.arange(BLOCK))[None, :]
        v, positions = tl.scan(later, (v, positions), 1)
        v, positions = later((high, where_high), (v, positions))
        tl.store(top, (row, j), v, mask=True)
        tl.store(at, (row, j), positions, mask=True)
        high = tl.max(v, axis=1, keepdims=True)
        where_high = tl.max(positions, axis=1, keepdims=True)
