"""Solve `lower[b] @ out[b] = rhs[b]` by forward substitution."""

import tilec as tl


class B(tl.Dim):
    """systems"""


class N(tl.Dim):
    """right-hand sides"""


@tl.kernel
def triangular_solve(
    lower: tl.In[tl.f32, B, 32, 32], rhs: tl.In[tl.f32, B, 32, N], out: tl.Out[tl.f32, B, 32, N], *, BLOCK: tl.Const
):
    tl.grid(tl.cdiv(N, BLOCK), B)
    j, b = tl.bid(0), tl.bid(1)
    x = tl.load(rhs, (b, 0, j), shape=(1, 32, BLOCK), pad=0).reshape((32, BLOCK))
    rows = tl.arange(32)[:, None]
    for i in range(32):
        column = tl.load(lower, (b, 0, i), shape=(1, 32, 1)).reshape((32, 1))
        xi = tl.sum(tl.where(rows == i, x, 0), axis=0, keepdims=True) / tl.load(lower, (b, i, i))
        x = tl.where(rows == i, xi, tl.where(rows > i, x - column * xi, x))
    tl.store(out, (b, 0, j), x.reshape((1, 32, BLOCK)), mask=True)
