"""Tiles of packed dtypes are converted before anything is computed with them."""

import tilec as tl


class N(tl.Dim):
    """rows"""


class K(tl.Dim):
    """columns"""


@tl.kernel
def packed_words(
    w: tl.In[tl.u4, N, K], f: tl.In[tl.f4e2m1, N, K], y: tl.In[tl.f32, K], out: tl.Out[tl.u4, N, K]
):  # fmt: skip
    tl.grid(N, tl.cdiv(K, 64))
    n, k = tl.bid(0), tl.bid(1)
    q = tl.load(w, (n, k), shape=(16, 64), pad=0)
    x = tl.load(f, (n, k), shape=(64, 16), pad=0)
    tl.store(out, (n, k), q + 1, mask=True)  #~ E0201
    tl.store(out, (n, k), q.astype(tl.i32), mask=True)  #~ E0201
    tl.store(out, (n, k), x, mask=True)  #~ E0201
    product = tl.mma(q, x, tl.zeros((16, 16), tl.f32))  #~ E0201
    total = tl.sum(x, 0)  #~ E0201
    turned = q.T  #~ E0201
    taken = tl.gather(w, (tl.arange(4), tl.arange(4)))  #~ E0201
    tl.scatter(out, (tl.arange(4), tl.arange(4)), tl.arange(4))  #~ E0201
    nothing = tl.zeros((4, 4), tl.i4)  #~ E0201
    padded = tl.load(f, (n, k), shape=(1, 64), pad=5)  #~ E0205
    tl.values(w, 0, 3)  #~ E0217
    tl.store(out, (n, k), 3)  #~ E0201
    if n > 2:  #~ E0201
        q = tl.load(w, (0, 0), shape=(16, 64), pad=0)
    tl.store(out, (n, k), q.astype(tl.i4), mask=True)
