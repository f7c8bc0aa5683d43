"""The largest elements of parts of long rows, and where they are."""

from order import LAST, E, N, T, key_of

import tilec as tl


class S(tl.Dim):
    """parts of a row"""


class K(tl.Dim):
    """elements to find in each part"""


@tl.function
def halves_in_order(x: tl.Tile, half: int, MOST: int) -> tl.Tile:
    """The smaller of elements `half` apart comes first."""
    other = tl.butterfly(x, 1, half)
    return tl.where((tl.arange(MOST)[None, :] & half) != 0, tl.maximum(x, other), tl.minimum(x, other))


@tl.function
def in_order(x: tl.Tile, MOST: int) -> tl.Tile:
    """Rows that rise and then fall, or fall and then rise, in ascending order (Batcher, 1968)."""
    assert MOST == 64
    x = halves_in_order(halves_in_order(halves_in_order(x, 32, MOST), 16, MOST), 8, MOST)
    return halves_in_order(halves_in_order(halves_in_order(x, 4, MOST), 2, MOST), 1, MOST)


@tl.function
def turned(x: tl.Tile, ROWS: int) -> tl.Tile:
    """Every other row with its order inverted."""
    return tl.where((tl.arange(ROWS)[:, None] & 1) != 0, ~x, x)


@tl.function
def halved(x: tl.Tile, ROWS: int, MOST: int) -> tl.Tile:
    """The MOST smallest elements of each pair of rows, of which the first is ascending and the second descending; they fall and
    then rise, or the other way."""
    return tl.min(x.reshape((ROWS // 2, 2, MOST)), axis=1)


@tl.function
def merged(x: tl.Tile, ROWS: int, MOST: int) -> tl.Tile:
    """Rows of `halved` as it takes them: alternately ascending and descending."""
    return turned(in_order(turned(x, ROWS), MOST), ROWS)


@tl.function
def smallest(x: tl.Tile, ROWS: int, MOST: int) -> tl.Tile:
    """The MOST smallest elements of ROWS rows of MOST, in ascending order."""
    assert ROWS == 4 or ROWS == 16 or ROWS == 32
    x = turned(tl.sort(turned(x, ROWS), 1), ROWS)
    if ROWS == 32:
        x = merged(halved(x, 32, MOST), 16, MOST)
    if ROWS >= 16:
        x = merged(halved(x, 16, MOST), 8, MOST)
        x = merged(halved(x, 8, MOST), 4, MOST)
    return in_order(halved(merged(halved(x, 4, MOST), 2, MOST), 2, MOST), MOST)


@tl.kernel
def topk_long(
    x: tl.In[E, T, N],
    values: tl.Out[E, T, S, K],
    columns: tl.Out[tl.i32, T, S, K],
    parts: tl.i32,
    k: tl.i32,
    *,
    E: tl.Const,
    MOST: tl.Const,
    TILES: tl.Const,
    BLOCK: tl.Const,
    MULTIPLE: tl.Const,
):
    """The `K <= MOST` largest elements of each of S parts of a row, in descending order; of equal ones those that come first.

    NaN is above all numbers. `parts` and `k` are S and K. A block takes a part of TILES tiles of BLOCK elements, of which those
    at one place of all tiles are a group. The largest elements are in the MOST groups that have the largest maxima, since
    elements of other groups have MOST elements above them. Sorted numbers have a key in the upper half and a place in the
    lower one, so that no two are equal. A part that has fewer than K elements ends with -inf and columns after the end of the
    row."""
    tl.requires(N % MULTIPLE == 0)
    tl.requires(K <= MOST and parts == S and k == K)
    tl.requires(N <= 536870912 and S <= 65535)
    tl.requires(tl.cdiv(N, TILES * BLOCK) == S)
    tl.grid(T, S)
    row, part = tl.bid(0), tl.bid(1)
    begin = part * TILES
    best = key_of(tl.load(x, (row, begin), shape=(1, BLOCK), pad=-tl.inf).astype(tl.f32), 1)
    tile_of_best = tl.zeros((1, BLOCK), tl.i32)
    for j in range(1, TILES):
        key = key_of(tl.load(x, (row, begin + j), shape=(1, BLOCK), pad=-tl.inf).astype(tl.f32), 1)
        is_better = key < best
        best, tile_of_best = tl.where(is_better, key, best), tl.where(is_better, j, tile_of_best)
    order = (best.astype(tl.i64) << 32) | (tile_of_best * BLOCK + tl.arange(BLOCK)[None, :]).astype(tl.i64)
    groups = smallest(order.reshape((BLOCK // MOST, MOST)), BLOCK // MOST, MOST)
    at = (begin + tl.arange(TILES))[:, None] * BLOCK + (groups & (BLOCK - 1)).astype(tl.i32)
    key = key_of(tl.gather(x, (row, at), pad=-tl.inf).astype(tl.f32), 1)
    found = smallest((key.astype(tl.i64) << 32) | at.astype(tl.i64), TILES, MOST)
    column = (found & LAST).astype(tl.i32)
    tl.store(columns, (row, part, 0), column[:, None, :], mask=True)
    tl.store(values, (row, part, 0), tl.gather(x, (row, column), pad=-tl.inf)[:, None, :], mask=True)
