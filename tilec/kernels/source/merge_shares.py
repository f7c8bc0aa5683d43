"""Which elements of two sorted runs each tile of the merged run gets: before a step of a merge sort."""

from merging import LAST, MOST, N, S, T, runs, within

import tilec as tl

HALVINGS = 30


@tl.kernel
def merge_shares(keys: tl.In[tl.i32, T, N], shares: tl.Out[tl.i32, T, S], run: tl.i32, *, TILE: tl.Const, BLOCK: tl.Const):
    """`shares[t, s]` is how many elements of the first of two runs come before tile s of TILE elements; runs are those of
    `merge_runs`. A block finds BLOCK of them by bisection along diagonals (Green and others, GPU Merge Path, 2012)."""
    tl.requires(N <= MOST and tl.cdiv(N, TILE) == S)
    tl.requires(run >= 1 and run <= MOST)
    tl.grid(T, tl.cdiv(S, BLOCK))
    row, group = tl.bid(0), tl.bid(1)
    begin = within(group * BLOCK + tl.arange(BLOCK), 0, MOST // TILE) * TILE
    first, second, end = runs(begin, run)
    count = within(begin - first, 0, MOST)
    low, high = within(count - (end - second), 0, MOST), within(second - first, 0, count)
    for _ in range(HALVINGS):
        if not tl.any(low < high):
            break
        middle = (low + high) // 2
        a = tl.gather(keys, (row, first + middle), pad=LAST)
        b = tl.gather(keys, (row, second + (count - 1 - middle)), pad=LAST)
        is_open = low < high
        low = tl.where(is_open & (a <= b), within(middle + 1, 0, MOST), low)
        high = tl.where(is_open & (a > b), middle, high)
    tl.store(shares, (row, group), low[None, :], mask=True)
