"""How many numbers are in each bin, from several counts of it."""

from counting import BINS, COPIES

import tilec as tl


@tl.kernel
def sum_counts(counts: tl.In[tl.i32, BINS, COPIES], out: tl.Out[tl.i32, BINS], *, MOST: tl.Const, BLOCK: tl.Const):
    """`out[b] = sum(counts[b])`, of a multiple of four counts, at most MOST. A block adds up those of BLOCK bins."""
    tl.requires(COPIES <= MOST and COPIES % 4 == 0)
    tl.grid(tl.cdiv(BINS, BLOCK))
    found = tl.load(counts, (tl.bid(0), 0), shape=(BLOCK, MOST), pad=0)
    tl.store(out, tl.bid(0), tl.sum(found, axis=1), mask=True)
