"""Linear layer at decode with the residual added: the projections that end attention and the feed-forward part."""

import tilec
from tilec import Const, Dim, Element, In, InOut, astype, bid, cdiv, f32, grid, load, mma, requires, store, sum, zeros


class E(Element):
    """bf16 or f16"""


class B(Dim):
    """rows of activations, 1 to 8"""


class N(Dim):
    """outputs"""


class K(Dim):
    """inputs"""


@tilec.kernel
def matvec_add(
    x: In[E, B, K], w: In[E, N, K], residual: InOut[E, B, N], *, E: Const, B: Const, K: Const, ROWS: Const, BLOCK: Const
):
    """`residual += x @ w.T`, accumulated in f32, the sum rounded once; ROWS outputs per block. As `matvec` does it."""
    grid(cdiv(N, ROWS))
    requires(K % BLOCK == 0)
    n = bid(0)
    if B == 1:
        old = load(residual, (0, n), shape=(1, ROWS), pad=0).astype(f32)
        acc = zeros((1, ROWS, BLOCK), f32)
        for k in range(K // BLOCK):
            a = load(x, (0, k), shape=(1, BLOCK)).astype(f32)
            b = load(w, (n, k), shape=(ROWS, BLOCK), pad=0).astype(f32)
            acc += a[:, None, :] * b[None, :, :]
        store(residual, (0, n), astype(sum(acc, axis=2) + old, E), mask=True)
    else:
        old = load(residual, (0, n), shape=(8, ROWS), pad=0).astype(f32)
        acc = zeros((ROWS, 8), f32)
        for k in range(K // BLOCK):
            a = load(w, (n, k), shape=(ROWS, BLOCK), pad=0)
            b = load(x, (0, k), shape=(8, BLOCK), pad=0)
            acc = mma(a, b.T, acc)
        store(residual, (0, n), astype(acc.T + old, E), mask=True)
