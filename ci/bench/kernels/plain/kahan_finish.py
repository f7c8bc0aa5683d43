"""The sum of the blocks' sums."""

import tilec as tl

from .kahan_sum import BLOCK, fold, two_sum


class P(tl.Dim):
    """blocks"""


@tl.kernel
def kahan_finish(high: tl.In[tl.f32, P], low: tl.In[tl.f32, P], out: tl.Out[tl.f32, 1]):
    """`out = sum(high + low)`"""
    tl.grid(1)
    s = tl.zeros((BLOCK,), tl.f32)
    e = tl.zeros((BLOCK,), tl.f32)
    for i in range(tl.cdiv(P, BLOCK)):
        s, d = two_sum(s, tl.load(high, i, shape=BLOCK, pad=0))
        e = e + d + tl.load(low, i, shape=BLOCK, pad=0)
    s, e = fold(s, e)
    tl.store(out, 0, s + e)
