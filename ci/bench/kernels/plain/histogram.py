"""Weighted histogram of f32 keys."""

import tilec as tl


class N(tl.Dim):
    """number of keys"""


class BINS(tl.Dim):
    """bins"""


@tl.kernel
def histogram(
    keys: tl.In[tl.f32, N],
    weights: tl.In[tl.f32, N],
    hist: tl.Atomic[tl.f32, BINS],
    low: tl.f32,
    high: tl.f32,
    *,
    BINS: tl.Const,
    BLOCK: tl.Const,
    BLOCKS: tl.Const,
):
    """Adds each weight to the bin of its key; keys outside of low <= key < high are skipped."""
    tl.grid(BLOCKS)
    scale = BINS / (high - low)
    for i in range(tl.bid(0), tl.cdiv(N, BLOCK), BLOCKS):
        x = tl.load(keys, i, shape=BLOCK, pad=tl.nan)
        w = tl.load(weights, i, shape=BLOCK, pad=0)
        index = tl.minimum(tl.floor((x - low) * scale).astype(tl.i32), BINS - 1)
        index = tl.where((x >= low) & (x < high), index, -1)
        tl.atomic_add(hist, w, at=index, mask=True)
