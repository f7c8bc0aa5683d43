"""Softmax of each row; a row has at most BLOCK elements."""

import tilec
from tilec import Const, Dim, Element, In, Out, astype, bid, exp, f32, grid, inf, load, max, requires, store, sum


class E(Element):
    """bf16 or f16"""


class T(Dim):
    """rows"""


class N(Dim):
    """elements of a row"""


@tilec.kernel
def padded_softmax(x: In[E, T, N], out: Out[E, T, N], *, E: Const, BLOCK: Const):
    """`out[t] = softmax(x[t])`, in f32, rounded once."""
    grid(T)
    requires(N <= BLOCK)
    row = bid(0)
    v = load(x, (row, 0), shape=(1, BLOCK), pad=-inf).astype(f32)
    weights = exp(v - max(v, axis=1)[:, None])
    store(out, (row, 0), astype(weights / sum(weights, axis=1)[:, None], E), mask=True)
