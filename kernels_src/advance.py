"""The end of a decode step: its token becomes the next step's input, one position further, without the host."""

from typing import Literal

import tilec
from tilec import In, InOut, Out, ensures, grid, i32, load, requires, store, values, where


@tilec.kernel
def advance(
    token: In[i32, Literal[1]],
    ids: Out[i32, Literal[1]],
    positions: InOut[i32, Literal[1]],
    slots: Out[i32, Literal[1]],
    lengths: Out[i32, Literal[1]],
    vocab_size: i32,
):
    """`ids = token`, `positions += 1`, `slots = positions` and `lengths = positions + 1`. A token outside the vocabulary, which
    logits that are not finite give, becomes 0, so that the next step stays in bounds."""
    grid(1)
    requires(vocab_size >= 1)
    values(positions, 0, 2147483646)
    ensures(ids, 0, vocab_size)
    ensures(positions, 1, 2, above=positions)
    ensures(slots, 1, 2, above=positions, distinct=True)
    ensures(lengths, 2, 3, above=positions)
    following = load(positions, 0, shape=1) + 1
    chosen = load(token, 0, shape=1)
    store(ids, 0, where((chosen >= 0) & (chosen < vocab_size), chosen, 0))
    store(positions, 0, following)
    store(slots, 0, following)
    store(lengths, 0, following + 1)
