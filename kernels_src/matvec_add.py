"""Linear layer at decode with the residual added: the projections that end attention and the feed-forward part."""

import tilec as tl

from .dims import B, E, K, N


@tl.kernel
def matvec_add(
    x: tl.In[E, B, K],
    w: tl.In[E, N, K],
    residual: tl.InOut[E, B, N],
    *,
    E: tl.Const,
    B: tl.Const,
    K: tl.Const,
    ROWS: tl.Const,
    BLOCK: tl.Const,
):
    """`residual += x @ w.T`, accumulated in f32, the sum rounded once; ROWS outputs per block. As `matvec` does it."""
    tl.grid(tl.cdiv(N, ROWS))
    tl.requires(K % BLOCK == 0)
    n = tl.bid(0)
    if B == 1:
        old = tl.load(residual, (0, n), shape=(1, ROWS), pad=0).astype(tl.f32)
        acc = tl.zeros((1, ROWS, BLOCK), tl.f32)
        for k in range(K // BLOCK):
            a = tl.load(x, (0, k), shape=(1, BLOCK)).astype(tl.f32)
            b = tl.load(w, (n, k), shape=(ROWS, BLOCK), pad=0).astype(tl.f32)
            acc += a[:, None, :] * b[None, :, :]
        tl.store(residual, (0, n), tl.astype(tl.sum(acc, axis=2) + old, E), mask=True)
    else:
        old = tl.load(residual, (0, n), shape=(8, ROWS), pad=0).astype(tl.f32)
        acc = tl.zeros((ROWS, 8), tl.f32)
        for k in range(K // BLOCK):
            a = tl.load(w, (n, k), shape=(ROWS, BLOCK), pad=0)
            b = tl.load(x, (0, k), shape=(8, BLOCK), pad=0)
            acc = tl.mma(a, b.T, acc)
        tl.store(residual, (0, n), tl.astype(acc.T + old, E), mask=True)
