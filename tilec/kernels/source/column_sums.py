"""Sums of the columns of stripes of rows: gradients of a bias."""

import tilec as tl


class E(tl.Element):
    """bf16, f16 or f32"""


class T(tl.Dim):
    """number of rows"""


class N(tl.Dim):
    """columns"""


class P(tl.Dim):
    """stripes of rows"""


@tl.kernel
def column_sums(
    x: tl.In[E, T, N], partial: tl.Out[tl.f32, P, N], *, E: tl.Const, ROWS: tl.Const, BLOCK: tl.Const, MULTIPLE: tl.Const
):
    """`partial[p]` is the sum of tiles p, p + P and so on of ROWS rows, in f32. A block adds BLOCK columns."""
    tl.requires(N % MULTIPLE == 0 and T <= 1073741824 and P <= 65535)
    tl.grid(tl.cdiv(N, BLOCK), P)
    column, p = tl.bid(0), tl.bid(1)
    total = tl.zeros((ROWS, BLOCK), tl.f32)
    for i in range(p, tl.cdiv(T, ROWS), P):
        total = total + tl.load(x, (i, column), shape=(ROWS, BLOCK), pad=0).astype(tl.f32)
    tl.store(partial, (p, column), tl.sum(total, axis=0)[None, :], mask=True)
