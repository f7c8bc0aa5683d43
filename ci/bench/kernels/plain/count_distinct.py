"""The number of distinct values of each sorted row."""

import tilec as tl


class T(tl.Dim):
    """rows"""


class N(tl.Dim):
    """elements of a row"""


@tl.kernel
def count_distinct(x: tl.In[tl.i32, T, N], out: tl.Out[tl.i32, T], *, BLOCK: tl.Const):
    tl.grid(T)
    row = tl.bid(0)
    count = tl.zeros((1, BLOCK), tl.i32)
    for j in range(tl.cdiv(N, BLOCK)):
        at = (j * BLOCK + tl.arange(BLOCK))[None, :]
        v = tl.load(x, (row, j), shape=(1, BLOCK), pad=0)
        before = tl.load(x, offset=(row, j * BLOCK - 1), shape=(1, BLOCK), pad=0)
        count = count + tl.where((at < N) & ((at == 0) | (v != before)), 1, 0)
    tl.store(out, row, tl.sum(count))
