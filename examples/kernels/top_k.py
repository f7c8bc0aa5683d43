"""The K largest of each row, in descending order, and where they are."""

import tilec
from tilec import Const, Dim, Element, In, Out, arange, argmax, bid, cdiv, f32, grid, i32, inf, load, max, store, where


class E(Element):
    """bf16, f16 or f32"""


class T(Dim):
    """number of rows"""


class N(Dim):
    """elements of a row"""


class K(Dim):
    """how many"""


@tilec.kernel
def top_k(
    x: In[E, T, N],
    best: Out[E, T, K],
    index: Out[i32, T, K],
    *,
    E: Const,
    N: Const,
    K: Const,
    ROWS: Const,
):
    """K rounds: the largest that is left, then it is taken out; the lowest index first among equals."""
    assert K <= N
    grid(cdiv(T, ROWS))
    rows = bid(0)
    v = load(x, (rows, 0), shape=(ROWS, N), pad=0).astype(f32)
    for k in range(K):
        at = argmax(v, axis=1)[:, None]
        store(best, (rows, k), max(v, axis=1)[:, None].astype(E), mask=True)
        store(index, (rows, k), at, mask=True)
        v = where(arange(N)[None, :] == at, -inf, v)
