"""The K largest of each row, in descending order, and where they are."""

import tilec as tl


class E(tl.Element):
    """bf16, f16 or f32"""


class T(tl.Dim):
    """number of rows"""


class N(tl.Dim):
    """elements of a row"""


class K(tl.Dim):
    """how many"""


@tl.kernel
def top_k(
    x: tl.In[E, T, N],
    best: tl.Out[E, T, K],
    index: tl.Out[tl.i32, T, K],
    *,
    E: tl.Const,
    N: tl.Const,
    K: tl.Const,
    ROWS: tl.Const,
):
    """K rounds: the largest that is left, then it is taken out; the lowest index first among equals."""
    assert K <= N
    tl.grid(tl.cdiv(T, ROWS))
    rows = tl.bid(0)
    v = tl.load(x, (rows, 0), shape=(ROWS, N), pad=0).astype(tl.f32)
    for k in range(K):
        at = tl.argmax(v, axis=1)[:, None]
        tl.store(best, (rows, k), tl.max(v, axis=1)[:, None].astype(E), mask=True)
        tl.store(index, (rows, k), at, mask=True)
        v = tl.where(tl.arange(N)[None, :] == at, -tl.inf, v)
