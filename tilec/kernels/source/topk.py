"""The largest elements of parts of rows, and where they are."""

import tilec as tl


class E(tl.Element):
    """bf16, f16 or f32"""


class T(tl.Dim):
    """number of rows"""


class N(tl.Dim):
    """elements of a row"""


class S(tl.Dim):
    """parts of a row"""


class K(tl.Dim):
    """elements to find in each part"""


@tl.function
def largest_of_both(
    values: tl.Tile, columns: tl.Tile, more: tl.Tile, more_columns: tl.Tile, ROWS: int, MOST: int
) -> tuple[tl.Tile, tl.Tile]:
    """The MOST largest of two times MOST, with their columns; of equal ones those that come first."""
    both = tl.permute(tl.join(values, more), (0, 2, 1)).reshape((ROWS, 2 * MOST))
    both_columns = tl.permute(tl.join(columns, more_columns), (0, 2, 1)).reshape((ROWS, 2 * MOST))
    both, both_columns = tl.sort((both, both_columns), 1, descending=True)
    largest, _ = tl.split(tl.permute(both.reshape((ROWS, 2, MOST)), (0, 2, 1)))
    their_columns, _ = tl.split(tl.permute(both_columns.reshape((ROWS, 2, MOST)), (0, 2, 1)))
    return largest, their_columns


@tl.kernel
def topk(
    x: tl.In[E, T, N],
    values: tl.Out[E, T, S, K],
    columns: tl.Out[tl.i32, T, S, K],
    parts: tl.i32,
    k: tl.i32,
    *,
    E: tl.Const,
    MOST: tl.Const,
    ROWS: tl.Const,
    BLOCK: tl.Const,
):
    """The `K <= MOST` largest elements of each of S parts of a row, in descending order; of equal ones those that come first.

    NaN is above all numbers. `parts` and `k` are S and K. A block takes a part of ROWS rows, one tile of BLOCK at a time,
    and keeps the MOST largest so far; rows are one tile if MOST is BLOCK. A part that has fewer than K elements ends with -inf
    and columns after the end of the row."""
    tl.requires(K <= MOST and parts == S and k == K)
    tl.requires(N <= 536870912 and S <= 65535)
    tl.requires(MOST < BLOCK or N <= BLOCK)
    tl.grid(tl.cdiv(T, ROWS), S)
    rows, part = tl.bid(0), tl.bid(1)
    tiles = tl.cdiv(tl.cdiv(N, BLOCK), S)
    begin = part * tiles
    largest, where_found = tl.topk(tl.load(x, (rows, begin), shape=(ROWS, BLOCK), pad=-tl.inf), MOST, 1)
    where_found = begin * BLOCK + where_found
    if MOST < BLOCK:
        for j in range(1, tiles):
            more, columns_of_more = tl.topk(tl.load(x, (rows, begin + j), shape=(ROWS, BLOCK), pad=-tl.inf), MOST, 1)
            columns_of_more = (begin + j) * BLOCK + columns_of_more
            largest, where_found = largest_of_both(largest, where_found, more, columns_of_more, ROWS, MOST)
    tl.store(values, (rows, part, 0), largest[:, None, :], mask=True)
    tl.store(columns, (rows, part, 0), where_found[:, None, :], mask=True)
