"""One Sinkhorn iteration in the log domain, uniform marginals."""

import tilec as tl


class B(tl.Dim):
    """problems"""


class M(tl.Dim):
    """rows"""


class N(tl.Dim):
    """columns"""


@tl.kernel
def sinkhorn(
    cost: tl.In[tl.f32, B, M, N],
    g: tl.In[tl.f32, B, N],
    f_new: tl.Out[tl.f32, B, M],
    g_new: tl.Out[tl.f32, B, N],
    eps: tl.f32,
    *,
    N: tl.Const,
    ROWS: tl.Const,
):
    tl.grid(B)
    b = tl.bid(0)
    old = tl.load(g, (b, 0), shape=(1, N))
    high = tl.full((1, N), -tl.inf, tl.f32)
    weight = tl.zeros((1, N), tl.f32)
    for i in range(tl.cdiv(M, ROWS)):
        c = tl.load(cost, (b, i, 0), shape=(1, ROWS, N), pad=0).reshape((ROWS, N))
        s = (old - c) / eps
        top = tl.max(s, axis=1, keepdims=True)
        lse = top + tl.log(tl.sum(tl.exp(s - top), axis=1, keepdims=True))
        f = -eps * (lse + tl.log(tl.f32(M)))
        tl.store(f_new, (b, i), f.reshape((1, ROWS)), mask=True)
        inside = (i * ROWS + tl.arange(ROWS))[:, None] < M
        r = tl.where(inside, (f - c) / eps, -tl.inf)
        higher = tl.maximum(high, tl.max(r, axis=0, keepdims=True))
        weight = weight * tl.exp(high - higher) + tl.sum(tl.exp(r - higher), axis=0, keepdims=True)
        high = higher
    tl.store(g_new, (b, 0), -eps * (high + tl.log(weight) + tl.log(tl.f32(N))))
