"""Where each choice of an expert goes: the last step of a counting sort, which is stable."""

from experts import N, P, X

import tilec as tl


@tl.kernel
def expert_slots(
    ids: tl.In[tl.i32, N],
    starts: tl.In[tl.i32, P, X],
    slots: tl.Out[tl.i32, N],
    order: tl.Atomic[tl.i32, N],
    *,
    BLOCK: tl.Const,
):
    """`slots[i]` is the number of choices before choice i in the order of experts, and `order[slots[i]]` becomes i, if it was
    -1 before. Choices of no expert have the slot -1.

    A choice comes after those of its expert in earlier tiles and those above it in its own. The prover does not know that
    slots differ: `order` is a maximum, which any slots leave within its bounds and the same at every launch."""
    tl.requires(tl.cdiv(N, BLOCK) == P and N <= 1073741824)
    tl.grid(P)
    tile, i = tl.bid(0), tl.arange(BLOCK)
    chosen = tl.load(ids, tile, shape=BLOCK, pad=-1)
    is_before = (chosen[:, None] == chosen[None, :]) & (i[None, :] < i[:, None])
    start = tl.minimum(tl.gather(starts, (tile, chosen), pad=-1), N)
    slot = tl.where(start < 0, -1, tl.maximum(start, 0) + tl.sum(tl.where(is_before, 1, 0), axis=1))
    tl.store(slots, tile, slot, mask=True)
    tl.atomic_max(order, tile * BLOCK + i, at=slot, mask=True)
