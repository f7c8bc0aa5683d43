"""Compensated sum: P blocks, each with a sum and what was lost of it."""

import tilec as tl

BLOCK = 1024
LOG = 10


class N(tl.Dim):
    """elements"""


class P(tl.Dim):
    """blocks"""


@tl.function
def two_sum(a, b):
    """`a + b`, and the error of it."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


@tl.function
def fold(s, e):
    """One sum and its error of a tile of sums and errors."""
    for _ in tl.static_range(LOG):
        a, b = tl.split(s.reshape((-1, 2)))
        ea, eb = tl.split(e.reshape((-1, 2)))
        s, d = two_sum(a, b)
        e = ea + eb + d
    return s, e


@tl.kernel
def kahan_sum(x: tl.In[tl.f32, N], high: tl.Out[tl.f32, P], low: tl.Out[tl.f32, P]):
    """`high + low` is the sum of every P-th tile of `x`."""
    tl.requires(P <= 65536)
    tl.grid(P)
    s = tl.zeros((BLOCK,), tl.f32)
    c = tl.zeros((BLOCK,), tl.f32)
    for i in range(tl.bid(0), tl.cdiv(N, BLOCK), tl.num_blocks(0)):
        y = tl.load(x, i, shape=BLOCK, pad=0) - c
        t = s + y
        c = (t - s) - y
        s = t
    s, e = fold(s, -c)
    s, e = two_sum(s, e)
    tl.store(high, tl.bid(0), s)
    tl.store(low, tl.bid(0), e)
