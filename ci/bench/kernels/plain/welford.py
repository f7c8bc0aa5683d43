"""Mean and variance over axis 0 by Welford's method."""

import tilec as tl


class M(tl.Dim):
    """rows"""


class N(tl.Dim):
    """columns"""


@tl.kernel
def welford(x: tl.In[tl.f32, M, N], mean: tl.Out[tl.f32, N], var: tl.Out[tl.f32, N], *, BLOCK: tl.Const):
    tl.grid(tl.cdiv(N, BLOCK))
    j = tl.bid(0)
    m = tl.zeros((1, BLOCK), tl.f32)
    m2 = tl.zeros((1, BLOCK), tl.f32)
    for i in range(M):
        v = tl.load(x, (i, j), shape=(1, BLOCK), pad=0)
        d = v - m
        m = m + d / tl.f32(i + 1)
        m2 = m2 + d * (v - m)
    tl.store(mean, j, m.reshape(BLOCK), mask=True)
    tl.store(var, j, (m2 / M).reshape(BLOCK), mask=True)
