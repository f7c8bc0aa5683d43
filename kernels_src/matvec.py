"""Linear layer at decode: a few rows of activations times a weight matrix, bound by the bytes of the weight."""

import tilec
from tilec import Const, Dim, Element, In, Out, astype, bid, cdiv, f32, grid, load, requires, store, sum, zeros


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
    """`out = x @ w.T`, accumulated in f32; ROWS outputs per block, BLOCK columns of the weight at a time."""
    grid(cdiv(N, ROWS))
    requires(K % BLOCK == 0)
    n = bid(0)
    acc = zeros((B, ROWS, BLOCK), f32)
    for k in range(K // BLOCK):
        a = load(x, (0, k), shape=(B, BLOCK)).astype(f32)
        b = load(w, (n, k), shape=(ROWS, BLOCK), pad=0).astype(f32)
        acc += a[:, None, :] * b[None, :, :]
    store(out, (0, n), astype(sum(acc, axis=2), E), mask=True)
