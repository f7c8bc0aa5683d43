"""Linear layer at decode: small M, activations times a weight matrix, bound by the bytes of the weight."""

import tilec as tl

from .dims import B, E, K, N


@tl.kernel
def matvec(
    x: tl.In[E, B, K],
    w: tl.In[E, N, K],
    out: tl.Out[E, B, N],
    *,
    E: tl.Const,
    B: tl.Const,
    K: tl.Const,
    ROWS: tl.Const,
    BLOCK: tl.Const,
):
    """`out = x @ w.T`, accumulated in f32; ROWS outputs per block, BLOCK columns of the weight at a time.

    One row of activations meets each weight once, so it is multiplied where the weight arrives, in registers. More rows use
    each weight several times: tensor cores do that, with the rows padded to the eight they take.
    """
    tl.grid(tl.cdiv(N, ROWS))
    tl.requires(K % BLOCK == 0)
    n = tl.bid(0)
    if B == 1:
        acc = tl.zeros((1, ROWS, BLOCK), tl.f32)
        for k in range(K // BLOCK):
            a = tl.load(x, (0, k), shape=(1, BLOCK)).astype(tl.f32)
            b = tl.load(w, (n, k), shape=(ROWS, BLOCK), pad=0).astype(tl.f32)
            acc += a[:, None, :] * b[None, :, :]
        tl.store(out, (0, n), tl.astype(tl.sum(acc, axis=2), E), mask=True)
    else:
        acc = tl.zeros((ROWS, 8), tl.f32)
        for k in range(K // BLOCK):
            a = tl.load(w, (n, k), shape=(ROWS, BLOCK), pad=0)
            b = tl.load(x, (0, k), shape=(8, BLOCK), pad=0)
            acc = tl.mma(a, b.T, acc)
        tl.store(out, (0, n), tl.astype(acc.T, E), mask=True)
