"""Gradient of the softmax of rows of any length: a row of one tile is read once, a longer one twice."""

import tilec as tl


class E(tl.Element):
    """bf16, f16 or f32"""


class T(tl.Dim):
    """number of rows"""


class N(tl.Dim):
    """elements of a row"""


@tl.kernel
def softmax_long_backward(
    dout: tl.In[E, T, N], out: tl.In[E, T, N], dx: tl.Out[E, T, N], *, E: tl.Const, BLOCK: tl.Const, MULTIPLE: tl.Const
):
    """`dx[t] = out[t] * (dout[t] - sum(dout[t] * out[t]))`, in f32, rounded once; `out` is the softmax.

    A block computes a row in tiles of BLOCK elements. The second pass begins with the last one, which is still in registers."""
    tl.requires(N % MULTIPLE == 0)
    tl.grid(T)
    row, tiles = tl.bid(0), tl.cdiv(N, BLOCK)
    sums = tl.zeros((1, BLOCK), tl.f32)
    y, dy = tl.zeros((1, BLOCK), E), tl.zeros((1, BLOCK), E)
    for j in range(tiles):
        y = tl.load(out, (row, j), shape=(1, BLOCK), pad=0)
        dy = tl.load(dout, (row, j), shape=(1, BLOCK), pad=0)
        sums = sums + y.astype(tl.f32) * dy.astype(tl.f32)
    total = tl.sum(sums)
    tl.store(dx, (row, tiles - 1), (y.astype(tl.f32) * (dy.astype(tl.f32) - total)).astype(E), mask=True)
    for j in range(tiles - 1):
        v = tl.load(out, (row, j), shape=(1, BLOCK), pad=0).astype(tl.f32)
        dv = tl.load(dout, (row, j), shape=(1, BLOCK), pad=0).astype(tl.f32)
        tl.store(dx, (row, j), (v * (dv - total)).astype(E), mask=True)
