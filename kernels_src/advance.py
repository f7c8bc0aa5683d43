"""The end of a decode step: its token becomes the next step's input, one position further, without the host."""

from typing import Literal

import tilec as tl


@tl.kernel
def advance(
    token: tl.In[tl.i32, Literal[1]],
    ids: tl.Out[tl.i32, Literal[1]],
    positions: tl.InOut[tl.i32, Literal[1]],
    slots: tl.Out[tl.i32, Literal[1]],
    lengths: tl.Out[tl.i32, Literal[1]],
    vocab_size: tl.i32,
):
    """`ids = token`, `positions += 1`, `slots = positions` and `lengths = positions + 1`. A token outside the vocabulary, which
    logits that are not finite give, becomes 0, so that the next step stays in bounds."""
    tl.grid(1)
    tl.requires(vocab_size >= 1)
    tl.values(positions, 0, 2147483646)
    tl.ensures(ids, 0, vocab_size)
    tl.ensures(positions, 1, 2, above=positions)
    tl.ensures(slots, 1, 2, above=positions, distinct=True)
    tl.ensures(lengths, 2, 3, above=positions)
    following = tl.load(positions, 0, shape=1) + 1
    chosen = tl.load(token, 0, shape=1)
    tl.store(ids, 0, tl.where((chosen >= 0) & (chosen < vocab_size), chosen, 0))
    tl.store(positions, 0, following)
    tl.store(slots, 0, following)
    tl.store(lengths, 0, following + 1)
