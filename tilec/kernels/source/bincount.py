"""How often each number occurs."""

from counting import BINS, COPIES, N, count

import tilec as tl


class L(tl.Element):
    """i32 or i64"""


@tl.kernel
def bincount(
    x: tl.In[L, N],
    counts: tl.Atomic[tl.i32, BINS, COPIES],
    *,
    L: tl.Const,
    FEW: tl.Const,
    COPIES: tl.Const,
    TILES: tl.Const,
    BLOCK: tl.Const,
):
    """The sum of `counts[b]` grows by the number of x that are b; others do not count. A block counts TILES tiles of BLOCK
    numbers: in shared memory if FEW * COPIES counts fit there, and then adds once to each count."""
    tl.requires(BINS <= FEW)
    tl.requires(N <= 1073741824)
    tl.grid(tl.cdiv(N, TILES * BLOCK))
    for j in range(TILES):
        v = tl.load(x, tl.bid(0) * TILES + j, shape=BLOCK, pad=-1)
        count(counts, tl.where((v >= 0) & (v < BINS), v, -1).astype(tl.i32), COPIES, 4)
