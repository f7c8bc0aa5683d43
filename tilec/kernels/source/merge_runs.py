"""Pairs of sorted runs become sorted runs of twice the length: a step of a merge sort."""

from merging import LAST, MOST, N, S, T, runs, within

import tilec as tl


@tl.function
def halves_in_order(x: tl.Tile, half: int, BLOCK: int) -> tl.Tile:
    """The smaller of elements `half` apart comes first."""
    other = tl.butterfly(x, 1, half)
    return tl.where((tl.arange(BLOCK)[None, :] & half) != 0, tl.maximum(x, other), tl.minimum(x, other))


@tl.function
def in_order(x: tl.Tile, BLOCK: int) -> tl.Tile:
    """The elements of a tile that rises and then falls in ascending order (Batcher, 1968). Elements are at
    the positions `dealt`, so that the three bits of a position in a thread are those of the largest distances."""
    assert BLOCK == 2048
    x = halves_in_order(halves_in_order(halves_in_order(x, 4, BLOCK), 2, BLOCK), 1, BLOCK)
    x = halves_in_order(halves_in_order(halves_in_order(x, 1024, BLOCK), 512, BLOCK), 256, BLOCK)
    x = halves_in_order(halves_in_order(halves_in_order(x, 128, BLOCK), 64, BLOCK), 32, BLOCK)
    return halves_in_order(halves_in_order(x, 16, BLOCK), 8, BLOCK)


@tl.function
def dealt(BLOCK: int) -> tl.Tile:
    """Which element of a tile is at each position: threads have 8 positions side by side, and adjacent ones read and write
    adjacent elements."""
    position = tl.arange(BLOCK)[None, :]
    return (position & 7) * (BLOCK // 8) + (position >> 3)


@tl.function
def collected(x: tl.Tile, BLOCK: int) -> tl.Tile:
    """The elements of a tile that are at the positions `dealt`."""
    return x.reshape((BLOCK // 8, 8)).T.reshape((1, BLOCK))


@tl.kernel
def merge_runs(
    keys: tl.In[tl.i32, T, N],
    positions: tl.In[tl.i32, T, N],
    shares: tl.In[tl.i32, T, S],
    merged: tl.Out[tl.i32, T, N],
    places: tl.Out[tl.i32, T, N],
    run: tl.i32,
    *,
    BLOCK: tl.Const,
):
    """Merge runs 0 and 1 of `run` elements of each row, 2 and 3, and so on; equal keys keep their order. `shares` are those of
    `merge_shares`, and `run` is a multiple of BLOCK.

    A block writes one tile of the merged row. Elements of the first run are followed by those of the second one in reverse
    order, with elements after all others in between. Equal keys are in the order of positions, which are not negative."""
    tl.requires(N <= MOST and tl.cdiv(N, BLOCK) == S)
    tl.requires(run >= 1 and run <= MOST)
    tl.grid(S * T)
    row, tile = tl.bid(0) // S, tl.bid(0) % S
    begin = within(tile, 0, MOST // BLOCK) * BLOCK
    first, second, end = runs(begin, run)
    before, after = within(begin - first, 0, MOST), within(tl.minimum(begin + BLOCK, end) - first, 0, MOST)
    taken = within(tl.load(shares, (row, tile)), 0, before)
    next_taken = within(tl.load(shares, (row, tile + 1), pad=0), 0, after)
    most = tl.where(begin + BLOCK < end, next_taken, second - first)
    of_first, of_both = within(most - taken, 0, BLOCK), within(after - before, 0, BLOCK)
    i = dealt(BLOCK)
    back = BLOCK - 1 - i
    number = tl.where(i < of_first, i, tl.where(back < of_both - of_first, of_first + back, BLOCK))
    from_first, from_second = first + taken, second + within(before - taken, 0, MOST) - of_first
    at = tl.where(number < of_first, from_first + number, tl.where(number < of_both, from_second + number, N))
    key, index = tl.gather(keys, (row, at), pad=LAST), tl.gather(positions, (row, at), pad=LAST)
    found = in_order((key.astype(tl.i64) << 32) | index.astype(tl.i64), BLOCK)
    tl.store(merged, (row, tile), collected((found >> 32).astype(tl.i32), BLOCK), mask=True)
    tl.store(places, (row, tile), collected((found & LAST).astype(tl.i32), BLOCK), mask=True)
