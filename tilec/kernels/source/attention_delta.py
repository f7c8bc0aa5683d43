"""Sums of products of the output of attention and its gradient (Dao, FlashAttention-2, 2023, algorithm 2, line 4)."""

from typing import Literal

from attention_parts import HKV, OB, OG, OH, OT, B, D, E, G, T

import tilec as tl


@tl.kernel
def attention_delta(
    out: tl.In[E, B, T, HKV, G, D],
    dout: tl.In[E, B, T, HKV, G, D, tl.Strides[OB, OT, OH, OG, Literal[1]]],
    delta: tl.Out[tl.f32, B, HKV, G, T],
    *,
    E: tl.Const,
    D: tl.Const,
    BM: tl.Const,
):
    """`delta[t] = sum(dout[t] * out[t])` in f32."""
    tl.requires(OB % 8 == 0 and OT % 8 == 0 and OH % 8 == 0 and OG % 8 == 0 and T <= 16777216)
    tl.grid(HKV * G, tl.cdiv(T, BM), B)
    head, member, m, b = tl.bid(0) // G, tl.bid(0) % G, tl.bid(1), tl.bid(2)
    mine = tl.reshape(tl.load(out, (b, m, head, member, 0), shape=(1, BM, 1, 1, D), pad=0), (BM, D))
    grad = tl.reshape(tl.load(dout, (b, m, head, member, 0), shape=(1, BM, 1, 1, D), pad=0), (BM, D))
    sums = tl.sum(mine.astype(tl.f32) * grad.astype(tl.f32), axis=1)
    tl.store(delta, (b, head, member, m), tl.reshape(sums, (1, 1, 1, BM)), mask=True)
