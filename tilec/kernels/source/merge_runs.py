"""Pairs of sorted runs become sorted runs of twice the length: a step of a merge sort."""

import tilec as tl

LAST = 0x7FFFFFFF
MOST = 536870912
HALVINGS = 30


class T(tl.Dim):
    """number of rows"""


class N(tl.Dim):
    """elements of a row"""


@tl.function
def within(i: tl.Tile, low: tl.Tile | int, high: tl.Tile | int) -> tl.Tile:
    return tl.minimum(tl.maximum(i, low), high)


@tl.function
def share_of_first(keys: tl.Tensor, row: int, first: tl.Tile, second: tl.Tile, end: tl.Tile, count: tl.Tile) -> tl.Tile:
    """Of the first `count` elements in the order of the runs from `first` and from `second` to `end`, how many are of the first
    run: by bisection along a diagonal (Green and others, GPU Merge Path, 2012)."""
    low, high = tl.maximum(count - (end - second), 0), tl.minimum(count, second - first)
    for _ in range(HALVINGS):
        if low >= high:
            break
        middle = within(low + (high - low) // 2, 0, MOST)
        if tl.load(keys, (row, first + middle), pad=LAST) <= tl.load(keys, (row, second + (count - 1 - middle)), pad=LAST):
            low = middle + 1
        else:
            high = middle
    return within(low, 0, count)


@tl.kernel
def merge_runs(
    keys: tl.In[tl.i32, T, N],
    positions: tl.In[tl.i32, T, N],
    merged: tl.Out[tl.i32, T, N],
    places: tl.Out[tl.i32, T, N],
    run: tl.i32,
    *,
    BLOCK: tl.Const,
):
    """Merge runs 0 and 1 of `run` elements of each row, 2 and 3, and so on; equal keys keep their order.

    A block writes one tile of the merged row: it finds how many elements of both runs come before the tile and before its end,
    and sorts those in between."""
    tl.requires(N <= MOST)
    tl.requires(run >= 1 and run <= MOST)
    tiles = tl.cdiv(N, BLOCK)
    tl.grid(tiles * T)
    row, tile = tl.bid(0) // tiles, tl.bid(0) % tiles
    begin = tile * BLOCK
    first = begin // (2 * run) * (2 * run)
    second = tl.minimum(first + run, N)
    end = tl.minimum(second + run, N)
    before, after = begin - first, tl.minimum(begin + BLOCK, end) - first
    taken = share_of_first(keys, row, first, second, end, before)
    most = share_of_first(keys, row, first, second, end, after)
    i = tl.arange(BLOCK)[None, :]
    of_first = first + taken + i
    of_second = second + (before - taken) + (i - (most - taken))
    at = tl.where(i < most - taken, of_first, tl.where(i < after - before, of_second, N))
    found, where_found = tl.sort((tl.gather(keys, (row, at), pad=LAST), tl.gather(positions, (row, at), pad=0)), 1)
    tl.store(merged, (row, tile), found, mask=True)
    tl.store(places, (row, tile), where_found, mask=True)
