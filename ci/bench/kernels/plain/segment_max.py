"""Largest element of each segment and where it is; segment ids are sorted."""

import tilec as tl


class N(tl.Dim):
    """elements"""


class S(tl.Dim):
    """segments"""


@tl.function
def lower_bound(segments, n, wanted):
    """The first position whose segment is not below `wanted`."""
    low, high = tl.i32(0), n
    while low < high:
        tl.invariant(low >= 0, low <= high, high <= n)
        middle = (low + high) // 2
        if tl.load(segments, middle) < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@tl.kernel
def segment_max(
    x: tl.In[tl.f32, N],
    segments: tl.In[tl.i32, N],
    top: tl.Out[tl.f32, S],
    arg: tl.Out[tl.i32, S],
    *,
    BLOCK: tl.Const,
):
    """`top[s] = max(x[segments == s])`, `arg[s]` its first position; -inf and -1 of an empty segment."""
    tl.requires(N <= 1 << 30)
    tl.grid(S)
    tl.values(segments, 0, S, sorted=True)
    s = tl.bid(0)
    begin = lower_bound(segments, N, s)
    end = lower_bound(segments, N, s + 1)
    best = tl.full((BLOCK,), -tl.inf, tl.f32)
    index = tl.full((BLOCK,), 2147483647, tl.i32)
    for j in range(tl.cdiv(end - begin, BLOCK)):
        at = begin + j * BLOCK + tl.arange(BLOCK)
        v = tl.load(x, offset=begin + j * BLOCK, shape=BLOCK, pad=-tl.inf)
        better = (at < end) & ((v > best) | (index == 2147483647))
        best = tl.where(better, v, best)
        index = tl.where(better, at, index)
    high = tl.max(best)
    first = tl.min(tl.where(best == high, index, 2147483647))
    tl.store(top, s, high)
    tl.store(arg, s, first if begin < end else -1)
