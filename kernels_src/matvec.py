"""Linear layer at decode: small M, activations times a weight matrix, bound by the bytes of the weight."""

import tilec
from tilec import Const, Dim, Element, In, Out, astype, bid, cdiv, f32, grid, load, mma, requires, store, sum, zeros


class E(Element):
    """bf16 or f16"""


class B(Dim):
    """rows of activations, 1 to 8"""


class N(Dim):
    """outputs"""


class K(Dim):
    """inputs"""


@tilec.kernel
def matvec(x: In[E, B, K], w: In[E, N, K], out: Out[E, B, N], *, E: Const, B: Const, K: Const, ROWS: Const, BLOCK: Const):
    """`out = x @ w.T`, accumulated in f32; ROWS outputs per block, BLOCK columns of the weight at a time.

    One row of activations meets each weight once, so it is multiplied where the weight arrives, in registers. More rows use
    each weight several times: tensor cores do that, with the rows padded to the eight they take.
    """
    grid(cdiv(N, ROWS))
    requires(K % BLOCK == 0)
    n = bid(0)
    if B == 1:
        acc = zeros((1, ROWS, BLOCK), f32)
        for k in range(K // BLOCK):
            a = load(x, (0, k), shape=(1, BLOCK)).astype(f32)
            b = load(w, (n, k), shape=(ROWS, BLOCK), pad=0).astype(f32)
            acc += a[:, None, :] * b[None, :, :]
        store(out, (0, n), astype(sum(acc, axis=2), E), mask=True)
    else:
        acc = zeros((ROWS, 8), f32)
        for k in range(K // BLOCK):
            a = load(w, (n, k), shape=(ROWS, BLOCK), pad=0)
            b = load(x, (0, k), shape=(8, BLOCK), pad=0)
            acc = mma(a, b.T, acc)
        store(out, (0, n), astype(acc.T, E), mask=True)
