"""How many numbers are in each of equal bins."""

from counting import BINS, COPIES, N, count

import tilec as tl


class E(tl.Element):
    """bf16, f16 or f32"""


@tl.kernel
def histogram(
    x: tl.In[E, N],
    counts: tl.Atomic[tl.i32, BINS, COPIES],
    low: tl.f32,
    high: tl.f32,
    *,
    E: tl.Const,
    FEW: tl.Const,
    COPIES: tl.Const,
    TILES: tl.Const,
    BLOCK: tl.Const,
):
    """The sum of `counts[b]` grows by the number of x in bin b of BINS equal ones from `low` to `high`, of which the last has
    `high`; others do not count. A block counts TILES tiles of BLOCK numbers: in shared memory if FEW * COPIES counts fit there,
    and then adds once to each count."""
    tl.requires(BINS <= FEW)
    tl.requires(N <= 1073741824)
    tl.grid(tl.cdiv(N, TILES * BLOCK))
    for j in range(TILES):
        v = tl.load(x, tl.bid(0) * TILES + j, shape=BLOCK, pad=tl.inf).astype(tl.f32)
        index = ((v - low) / (high - low) * tl.f32(BINS)).astype(tl.i32)
        is_inside = (v >= low) & (v <= high) & (v < tl.inf)
        count(counts, tl.where(is_inside, tl.minimum(tl.maximum(index, 0), BINS - 1), -1), COPIES, 8)
