"""How many numbers are in each of equal bins."""

from counting import BINS, N, count, is_in

import tilec as tl


class E(tl.Element):
    """bf16, f16 or f32"""


@tl.function
def bin_of(x: tl.Tensor, tile: int, low: tl.f32, high: tl.f32, BLOCK: int) -> tl.Tile:
    """The bins of a tile of numbers, -1 for those that are outside."""
    v = tl.load(x, tile, shape=BLOCK, pad=tl.inf).astype(tl.f32)
    place = ((v - low) / (high - low) * tl.f32(BINS)).astype(tl.i32)
    return tl.where((v >= low) & (v <= high) & (v < tl.inf), tl.minimum(tl.maximum(place, 0), BINS - 1), -1)


@tl.kernel
def histogram(
    x: tl.In[E, N],
    counts: tl.Atomic[tl.i32, BINS],
    low: tl.f32,
    high: tl.f32,
    *,
    E: tl.Const,
    FEW: tl.Const,
    TILES: tl.Const,
    BLOCK: tl.Const,
):
    """`counts[b]` grows by the number of x in bin b of BINS equal ones from `low` to `high`, of which the last has `high`;
    others do not count. A block counts TILES tiles of BLOCK numbers.

    If there are at most FEW bins, it counts in a tile with a column for each, and adds once to each bin; if FEW is 0, it adds
    for each number."""
    tl.requires(FEW == 0 or BINS <= FEW)
    tl.requires(N <= 1073741824)
    tl.grid(tl.cdiv(N, TILES * BLOCK))
    if FEW:
        found = tl.zeros((BLOCK, FEW), tl.i32)
        for j in range(TILES):
            found = found + is_in(bin_of(x, tl.bid(0) * TILES + j, low, high, BLOCK), FEW)
        tl.atomic_add(counts, 0, tl.sum(found, axis=0), mask=True)
    else:
        for j in range(TILES):
            count(counts, bin_of(x, tl.bid(0) * TILES + j, low, high, BLOCK))
