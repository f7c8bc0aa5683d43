"""Second half of an argmax over the vocabulary: the best part of each row."""

import tilec as tl

from .dims import B, P


@tl.kernel
def argmax_reduce(maxima: tl.In[tl.f32, B, P], indices: tl.In[tl.i32, B, P], out: tl.Out[tl.i32, B], *, PARTS: tl.Const):
    """`out[b]` is the lowest index that holds the greatest of the row's maxima; at most PARTS parts."""
    tl.grid(B)
    tl.requires(P <= PARTS)
    row = tl.bid(0)
    v = tl.load(maxima, (row, 0), shape=(1, PARTS), pad=-tl.inf)
    at = tl.load(indices, (row, 0), shape=(1, PARTS), pad=2147483647)
    best = tl.max(v, axis=1)
    tl.store(out, row, tl.min(tl.where(v == best[:, None], at, 2147483647), axis=1))
