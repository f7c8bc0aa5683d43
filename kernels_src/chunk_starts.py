"""Where the chunks of each row begin in the list of all rows' chunks, the work of `paged_decode_attention`."""

from typing import Literal

import tilec as tl

from .dims import T


@tl.kernel
def chunk_starts(
    lengths: tl.In[tl.i32, T],
    starts: tl.Out[tl.i32, Literal["T + 1"]],
    *,
    CHUNK: tl.Const,
    BLOCK: tl.Const,
):
    """`starts[b]` chunks of CHUNK tokens are of rows before row b, the last chunk of a row with what is left; `starts[T]` of
    all. A length below 0 counts as 0."""
    tl.requires(T < BLOCK)
    tl.grid(1)
    chunks = (tl.maximum(tl.load(lengths, 0, shape=BLOCK, pad=0), 0) + (CHUNK - 1)) // CHUNK
    tl.store(starts, 0, tl.cumsum(chunks, 0, exclusive=True), mask=True)
