"""Second half of an argmax over the vocabulary: the best part of each row."""

import tilec
from tilec import Const, Dim, In, Out, bid, f32, grid, i32, inf, load, max, min, requires, store, where


class B(Dim):
    """number of rows"""


class P(Dim):
    """parts per row"""


@tilec.kernel
def argmax_reduce(maxima: In[f32, B, P], indices: In[i32, B, P], out: Out[i32, B], *, PARTS: Const):
    """`out[b]` is the lowest index that holds the greatest of the row's maxima; at most PARTS parts."""
    grid(B)
    requires(P <= PARTS)
    row = bid(0)
    v = load(maxima, (row, 0), shape=(1, PARTS), pad=-inf)
    at = load(indices, (row, 0), shape=(1, PARTS), pad=2147483647)
    best = max(v, axis=1)
    store(out, row, min(where(v == best[:, None], at, 2147483647), axis=1))
