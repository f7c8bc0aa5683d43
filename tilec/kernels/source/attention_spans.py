"""Which keys each query of sequences of several lengths attends to, and which queries attend to each key."""

from typing import Literal

import tilec as tl

LIMIT = 16777216
NEVER = 2147483647


class B(tl.Dim):
    """sequences"""


class T(tl.Dim):
    """queries of all sequences"""


class S(tl.Dim):
    """keys of all sequences"""


@tl.function
def spans_of(row: tl.Tile, own: tl.Tensor, others: tl.Tensor, before: tl.Scalar, after: tl.Scalar, count: tl.Scalar):
    """First and last but one row of the other side that each row sees, whether it sees any, its position there and sequence."""
    b = tl.zeros(row.shape, tl.i32)
    for step in range(25):
        middle = tl.minimum(b, count) + (LIMIT >> step)
        b = tl.where(tl.gather(own, middle, pad=NEVER) <= row, middle, b)
    b = tl.minimum(b, count)
    begin, stop = tl.gather(own, b), tl.gather(own, b + 1, pad=0)
    position = row - stop + tl.gather(others, b + 1, pad=0)
    low = tl.maximum(tl.gather(others, b), position - before)
    high = tl.minimum(tl.gather(others, b + 1, pad=0), position + after + 1)
    return low, high, (begin <= row) & (row < stop) & (low < high), position, b


@tl.kernel
def attention_spans(
    queries: tl.In[tl.i32, Literal["B + 1"]],
    keys: tl.In[tl.i32, Literal["B + 1"]],
    spans: tl.Out[tl.i32, Literal["(T + ROWS - 1) // ROWS + (S + ROWS - 1) // ROWS"], Literal[4], Literal["ROWS"]],
    tiles: tl.Out[tl.i32, Literal["(T + ROWS - 1) // ROWS + (S + ROWS - 1) // ROWS"], Literal[4]],
    T: tl.i32,
    S: tl.i32,
    before: tl.i32,
    after: tl.i32,
    *,
    ROWS: tl.Const,
):
    """Tiles of ROWS queries, then tiles of ROWS keys. Row r of tile m sees `spans[m, 0, r]` to `spans[m, 1, r] - 1` of the
    other side, and nothing if `spans[m, :, r]` is 0. It is where row `spans[m, 2, r]` of the other side is, and of the sequence
    `spans[m, 3, r]`. Rows of the tile see nothing outside of `tiles[m, 0]` to `tiles[m, 1] - 1`, and all of them see
    `tiles[m, 2]` to `tiles[m, 3] - 1`.

    Sequence b has queries `queries[b]` to `queries[b + 1] - 1`, likewise keys. The last ones of both are at one position, and a
    query at position p attends to keys at `p - before` to `p + after`. Offsets are not trusted: with wrong ones, rows see
    other rows.
    """
    tl.requires(B <= LIMIT, T >= 1, T <= LIMIT, S >= 1, S <= LIMIT)
    tl.requires(before >= 0, before <= LIMIT, after >= 0, after <= LIMIT)
    query_tiles = tl.cdiv(T, ROWS)
    tl.grid(query_tiles + tl.cdiv(S, ROWS))
    m = tl.bid(0)
    if m < query_tiles:
        row, rows = m * ROWS + tl.arange(ROWS), T
        low, high, seen, position, sequence = spans_of(row, queries, keys, before, after, B)
    else:
        row, rows = (m - query_tiles) * ROWS + tl.arange(ROWS), S
        low, high, seen, position, sequence = spans_of(row, keys, queries, after, before, B)
    seen = seen & (row < rows)
    blind = tl.any((row < rows) & ~seen)
    low, high = tl.where(seen, low, 0), tl.where(seen, high, 0)
    tl.store(spans, (m, 0, 0), low[None, None, :])
    tl.store(spans, (m, 1, 0), high[None, None, :])
    tl.store(spans, (m, 2, 0), tl.where(seen, position, 0)[None, None, :])
    tl.store(spans, (m, 3, 0), tl.where(seen, sequence, 0)[None, None, :])
    tl.store(tiles, (m, 0), tl.min(tl.where(seen, low, NEVER)))
    tl.store(tiles, (m, 1), tl.max(high))
    tl.store(tiles, (m, 2), tl.where(blind, NEVER, tl.max(low)))
    tl.store(tiles, (m, 3), tl.min(tl.where(seen, high, NEVER)))
