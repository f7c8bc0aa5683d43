"""Run-length encoding by one block: the value and the length of each run, and the number of runs."""

import tilec as tl


class N(tl.Dim):
    """number of elements"""


@tl.kernel
def rle(
    x: tl.In[tl.i32, N],
    values: tl.InOut[tl.i32, N],
    lengths: tl.InOut[tl.i32, N],
    count: tl.Out[tl.i32, 1],
    *,
    BLOCK: tl.Const,
):
    tl.requires(N <= 1 << 30)
    tl.grid(1)
    runs = tl.i32(0)
    start = tl.i32(0)
    for j in range(tl.cdiv(N, BLOCK)):
        tl.invariant(runs >= 0, runs <= j * BLOCK)
        at = j * BLOCK + tl.arange(BLOCK)
        v = tl.load(x, j, shape=BLOCK, pad=0)
        before = tl.load(x, offset=j * BLOCK - 1, shape=BLOCK, pad=0)
        after = tl.load(x, offset=j * BLOCK + 1, shape=BLOCK, pad=0)
        inside = at < N
        first = inside & ((at == 0) | (v != before))
        last = inside & ((at == N - 1) | (v != after))
        begin = tl.maximum(tl.cummax(tl.where(first, at, 0), 0), start)
        index = tl.where(last, runs + tl.cumsum(tl.where(last, 1, 0), 0, exclusive=True), N)
        tl.scatter(values, index, v, mask=True)
        tl.scatter(lengths, index, at - begin + 1, mask=True)
        runs += tl.sum(tl.where(last, 1, 0))
        start = tl.max(begin)
    tl.store(count, 0, runs)
