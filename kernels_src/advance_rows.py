"""The end of a step of several sequences: the token of each becomes its next input, without the host."""

import tilec as tl

from .dims import B


@tl.kernel
def advance_rows(
    token: tl.In[tl.i32, B],
    going: tl.In[tl.i32, B],
    ids: tl.Out[tl.i32, B],
    positions: tl.InOut[tl.i32, B],
    slots: tl.Out[tl.i32, B],
    lengths: tl.Out[tl.i32, B],
    vocab_size: tl.i32,
):
    """For each sequence `ids = token`, `positions += going`, `slots = positions`, `lengths = positions + 1`. `going` is 1, or 0
    for one that stays where it is. A token outside the vocabulary becomes 0, as in `advance`."""
    tl.grid(B)
    tl.requires(vocab_size >= 1)
    tl.values(positions, 0, 2147483645)
    tl.values(going, 0, 2)
    tl.ensures(ids, 0, vocab_size)
    tl.ensures(positions, 0, 1, above=(positions, going))
    tl.ensures(slots, 0, 1, above=(positions, going))
    tl.ensures(lengths, 1, 2, above=(positions, going))
    b = tl.bid(0)
    following = tl.load(positions, b, shape=1) + tl.load(going, b, shape=1)
    chosen = tl.load(token, b, shape=1)
    tl.store(ids, b, tl.where((chosen >= 0) & (chosen < vocab_size), chosen, 0))
    tl.store(positions, b, following)
    tl.store(slots, b, following)
    tl.store(lengths, b, following + 1)
