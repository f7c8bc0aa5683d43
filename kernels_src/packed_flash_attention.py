"""Causal attention of the tokens of several prompts in one pass over their keys and values, which are one after the other (Dao,
FlashAttention-2, 2023)."""

import tilec as tl

from .dims import HKV, D, E, G, T


class S(tl.Dim):
    """slots of all prompts"""


@tl.kernel
def packed_flash_attention(
    q: tl.In[E, T, HKV, G, D],
    k_cache: tl.In[E, S, HKV, D],
    v_cache: tl.In[E, S, HKV, D],
    firsts: tl.In[tl.i32, T],
    lasts: tl.In[tl.i32, T],
    out: tl.Out[E, T, HKV, G, D],
    scale: tl.f32,
    *,
    E: tl.Const,
    D: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
):
    """Token t attends to slots `firsts[t]` to `lasts[t]`: `softmax(q @ k.T * scale) @ v` in f32, `scale` > 0. Neither falls
    from a token to the next. A prompt begins at a multiple of BN, so a token's sums have the order that its position gives,
    whatever stands next to its prompt: a tile of keys in which all of its weights are 0 changes nothing.

    Slots that a block multiplies by zero must hold finite numbers: those of other prompts with a token in it, and those between
    a prompt's last token and the next multiple of BN. Scores are above -3e38. Blocks take the last rows first.
    """
    tl.grid(G, HKV, tl.cdiv(T, BM))
    tl.requires(S % BN == 0 and S <= 536870912 and T <= 536870912)
    tl.values(firsts, 0, S)
    tl.values(lasts, 0, S)
    member, head, m = tl.bid(0), tl.bid(1), tl.cdiv(T, BM) - 1 - tl.bid(2)
    query = tl.reshape(tl.load(q, (m, head, member, 0), shape=(BM, 1, 1, D), pad=0), (BM, D))
    first, last = tl.load(firsts, m, shape=BM, pad=0), tl.load(lasts, m, shape=BM, pad=0)
    final = min(m * BM + BM, T) - 1
    # Every row of the block attends to the slots from `begin` to before `end`.
    begin, end = tl.load(firsts, final), tl.load(lasts, m * BM) + 1
    log2_scale = scale * 1.4426950408889634
    top = tl.full((BM,), -3.0e38, tl.f32)
    total = tl.zeros((BM,), tl.f32)
    acc = tl.zeros((BM, D), tl.f32)
    for j in range(tl.load(firsts, m * BM) // BN, tl.load(lasts, final) // BN + 1):
        k = tl.reshape(tl.load(k_cache, (j, head, 0), shape=(BN, 1, D)), (BN, D))
        v = tl.reshape(tl.load(v_cache, (j, head, 0), shape=(BN, 1, D)), (BN, D))
        s = tl.mma(query, k.T, tl.zeros((BM, BN), tl.f32))
        if j * BN < begin or j * BN + BN > end:
            slots = (j * BN + tl.arange(BN))[None, :]
            s = tl.where((slots >= first[:, None]) & (slots <= last[:, None]), s, -tl.inf)
        higher = tl.maximum(top, tl.max(s, axis=1) * log2_scale)
        p = tl.exp2(s * log2_scale - higher[:, None], fast=True)
        shrink = tl.exp2(top - higher, fast=True)
        total = total * shrink + tl.sum(p, axis=1)
        acc = tl.mma(tl.astype(p, E), v, acc * shrink[:, None])
        top = higher
    share = 1.0 / total
    tl.store(out, (m, head, member, 0), tl.reshape(tl.astype(acc * share[:, None], E), (BM, 1, 1, D)), mask=True)
