"""Where the choices of each tile begin in the order of experts: the second step of a counting sort, a scan of the counts."""

from experts import P, X

import tilec as tl


@tl.kernel
def expert_starts(
    counts: tl.In[tl.i32, P, X],
    totals: tl.In[tl.i32, X],
    starts: tl.Out[tl.i32, P, X],
    ends: tl.Out[tl.i32, X],
    *,
    ROWS: tl.Const,
    COLUMNS: tl.Const,
    EXPERTS: tl.Const,
):
    """`starts[p, e]` is the number of choices of experts before e, and of e in tiles before p; `ends[e]` that of choices of
    experts up to e. A block scans COLUMNS experts, ROWS tiles at a time."""
    tl.requires(X <= EXPERTS)
    tl.grid(tl.cdiv(X, COLUMNS))
    group = tl.bid(0)
    before = tl.sum(tl.where(tl.arange(EXPERTS) < group * COLUMNS, tl.load(totals, 0, shape=EXPERTS, pad=0), 0))
    own = tl.load(totals, group, shape=COLUMNS, pad=0)
    tl.store(ends, group, before + tl.cumsum(own, 0), mask=True)
    start = (before + tl.cumsum(own, 0, exclusive=True))[None, :]
    for i in range(tl.cdiv(P, ROWS)):
        count = tl.load(counts, (i, group), shape=(ROWS, COLUMNS), pad=0)
        tl.store(starts, (i, group), start + tl.cumsum(count, 0, exclusive=True), mask=True)
        start = start + tl.sum(count, axis=0, keepdims=True)
