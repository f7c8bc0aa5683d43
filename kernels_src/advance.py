"""The end of a decode step: its token becomes the next step's input, one position further, without the host."""

from typing import Literal

import tilec
from tilec import In, InOut, Out, grid, i32, load, store


@tilec.kernel
def advance(
    token: In[i32, Literal[1]],
    ids: Out[i32, Literal[1]],
    positions: InOut[i32, Literal[1]],
    slots: Out[i32, Literal[1]],
    lengths: Out[i32, Literal[1]],
):
    """`ids = token`, `positions += 1`, `slots = positions` and `lengths = positions + 1`."""
    grid(1)
    following = load(positions, 0, shape=1) + 1
    store(ids, 0, load(token, 0, shape=1))
    store(positions, 0, following)
    store(slots, 0, following)
    store(lengths, 0, following + 1)
