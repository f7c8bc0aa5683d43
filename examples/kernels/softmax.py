"""Softmax of each row; a row is one tile."""

import tilec
from tilec import Const, Dim, Element, In, Out, bid, exp, f32, grid, load, max, store, sum


class E(Element):
    """bf16, f16 or f32"""


class T(Dim):
    """number of rows"""


class N(Dim):
    """elements of a row"""


@tilec.kernel
def softmax(x: In[E, T, N], out: Out[E, T, N], *, E: Const, N: Const):
    """`out[t] = exp(x[t] - max(x[t])) / sum(exp(x[t] - max(x[t])))`, in f32, rounded once."""
    grid(T)
    row = bid(0)
    v = load(x, (row, 0), shape=(1, N)).astype(f32)
    weights = exp(v - max(v))
    store(out, (row, 0), (weights / sum(weights)).astype(E))
