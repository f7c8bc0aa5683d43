"""Numbers of each query that the gradients of attention need (Dao, FlashAttention-2, 2023, algorithm 2, line 4)."""

from typing import Literal

from attention_parts import HKV, LOG2E, OB, OG, OH, OT, B, D, E, G, T

import tilec as tl


@tl.kernel
def attention_rows(
    out: tl.In[E, B, T, HKV, G, D],
    dout: tl.In[E, B, T, HKV, G, D, tl.Strides[OB, OT, OH, OG, Literal[1]]],
    lse: tl.In[tl.f32, B, HKV, G, T],
    rows: tl.Out[tl.f32, B, HKV, G, Literal[2], Literal["(T + 255) // 128 * 128"]],
    *,
    E: tl.Const,
    D: tl.Const,
    BM: tl.Const,
):
    """`rows[0, t] = -lse[t] * log2(e)` and `rows[1, t] = -sum(dout[t] * out[t])` in f32, for whoever adds them to scores and
    their gradients. Past the last query they are -inf and 0, for tiles of up to 128 rows that begin at a query: they are loaded
    without masks, and their probabilities are 0.
    """
    assert 128 % BM == 0
    tl.requires(OB % 8 == 0 and OT % 8 == 0 and OH % 8 == 0 and OG % 8 == 0 and T <= 16777216)
    tl.grid(HKV * G, (T + 255) // 128 * (128 // BM), B)
    head, member, m, b = tl.bid(0) // G, tl.bid(0) % G, tl.bid(1), tl.bid(2)
    mine = tl.reshape(tl.load(out, (b, m, head, member, 0), shape=(1, BM, 1, 1, D), pad=0), (BM, D))
    grad = tl.reshape(tl.load(dout, (b, m, head, member, 0), shape=(1, BM, 1, 1, D), pad=0), (BM, D))
    log_sum = tl.load(lse, (b, head, member, m), shape=(1, 1, 1, BM), pad=tl.inf)
    sums = tl.sum(mine.astype(tl.f32) * grad.astype(tl.f32), axis=1)
    tl.store(rows, (b, head, member, 0, m), tl.reshape(log_sum * -LOG2E, (1, 1, 1, 1, BM)))
    tl.store(rows, (b, head, member, 1, m), tl.reshape(-sums, (1, 1, 1, 1, BM)))
