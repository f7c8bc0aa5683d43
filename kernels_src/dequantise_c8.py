"""Keys or values of 16 bits from a cache of codes, for attention of many tokens, which multiplies by each again and again."""

import tilec as tl

from .dims import HKV, D, E


class S(tl.Dim):
    """slots of the cache"""


@tl.kernel
def dequantise_c8(
    cache: tl.In[tl.f8e4m3, S, HKV, D],
    scales: tl.In[tl.f32, S, HKV],
    out: tl.InOut[E, S, HKV, D],
    filled: tl.i32,
    *,
    E: tl.Const,
    D: tl.Const,
    SLOTS: tl.Const,
    HEADS: tl.Const,
):
    """`out[s, h] = cache[s, h] * scales[s, h]`, the f32 product rounded once, of the slots before `filled`; SLOTS slots and
    HEADS heads per block. Others stay as they are, up to a multiple of SLOTS."""
    tl.grid(HKV // HEADS, S // SLOTS)
    tl.requires(HKV % HEADS == 0 and S % SLOTS == 0)
    head, slot = tl.bid(0), tl.bid(1)
    if slot * SLOTS < filled:
        s = tl.load(scales, (slot, head), shape=(SLOTS, HEADS))
        x = tl.load(cache, (slot, head, 0), shape=(SLOTS, HEADS, D)).astype(tl.f32)
        tl.store(out, (slot, head, 0), tl.astype(x * s[:, :, None], E))
