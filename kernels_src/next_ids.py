"""The end of a step of rows whose places the host sets: the token of each becomes its next input, without the host."""

import tilec as tl

from .dims import T


@tl.kernel
def next_ids(token: tl.In[tl.i32, T], ids: tl.Out[tl.i32, T], vocab_size: tl.i32):
    """`ids = token`; a token outside the vocabulary becomes 0, as in `advance`."""
    tl.grid(T)
    tl.requires(vocab_size >= 1)
    tl.ensures(ids, 0, vocab_size)
    t = tl.bid(0)
    chosen = tl.load(token, t, shape=1)
    tl.store(ids, t, tl.where((chosen >= 0) & (chosen < vocab_size), chosen, 0))
