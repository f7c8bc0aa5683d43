"""The end of a step of several sequences: the token of each becomes its next input, without the host."""

import tilec
from tilec import Dim, In, InOut, Out, bid, ensures, grid, i32, load, requires, store, values, where


class B(Dim):
    """number of sequences"""


@tilec.kernel
def advance_rows(
    token: In[i32, B],
    going: In[i32, B],
    ids: Out[i32, B],
    positions: InOut[i32, B],
    slots: Out[i32, B],
    lengths: Out[i32, B],
    vocab_size: i32,
):
    """For each sequence `ids = token`, `positions += going`, `slots = positions`, `lengths = positions + 1`. `going` is 1, or 0
    for one that stays where it is. A token outside the vocabulary becomes 0, as in `advance`."""
    grid(B)
    requires(vocab_size >= 1)
    values(positions, 0, 2147483645)
    values(going, 0, 2)
    ensures(ids, 0, vocab_size)
    ensures(positions, 0, 1, above=(positions, going))
    ensures(slots, 0, 1, above=(positions, going))
    ensures(lengths, 1, 2, above=(positions, going))
    b = bid(0)
    following = load(positions, b, shape=1) + load(going, b, shape=1)
    chosen = load(token, b, shape=1)
    store(ids, b, where((chosen >= 0) & (chosen < vocab_size), chosen, 0))
    store(positions, b, following)
    store(slots, b, following)
    store(lengths, b, following + 1)
