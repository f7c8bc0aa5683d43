"""Attention with an additive bias of each head, query and key."""

import tilec as tl


class B(tl.Dim):
    """sequences"""


class H(tl.Dim):
    """heads"""


class T(tl.Dim):
    """queries"""


class S(tl.Dim):
    """keys"""


class D(tl.Dim):
    """elements of a head"""


@tl.kernel
def bias_attention(
    q: tl.In[tl.bf16, B, H, T, D],
    k: tl.In[tl.bf16, B, H, S, D],
    v: tl.In[tl.bf16, B, H, S, D],
    bias: tl.In[tl.bf16, B, H, T, S],
    out: tl.Out[tl.bf16, B, H, T, D],
    scale: tl.f32,
    *,
    D: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
):
    tl.grid(tl.cdiv(T, BM), H, B)
    i, h, b = tl.bid(0), tl.bid(1), tl.bid(2)
    queries = tl.load(q, (b, h, i, 0), shape=(1, 1, BM, D), pad=0).reshape((BM, D))
    high = tl.full((BM,), -tl.inf, tl.f32)
    total = tl.zeros((BM,), tl.f32)
    acc = tl.zeros((BM, D), tl.f32)
    for j in range(tl.cdiv(S, BN)):
        keys = tl.load(k, (b, h, j, 0), shape=(1, 1, BN, D), pad=0).reshape((BN, D))
        vals = tl.load(v, (b, h, j, 0), shape=(1, 1, BN, D), pad=0).reshape((BN, D))
        extra = tl.load(bias, (b, h, i, j), shape=(1, 1, BM, BN), pad=0).reshape((BM, BN)).astype(tl.f32)
        s = tl.mma(queries, keys.T, tl.zeros((BM, BN), tl.f32)) * scale + extra
        s = tl.where((j * BN + tl.arange(BN))[None, :] < S, s, -tl.inf)
        higher = tl.maximum(high, tl.max(s, axis=1))
        p = tl.exp(s - higher[:, None])
        fix = tl.exp(high - higher)
        total = total * fix + tl.sum(p, axis=1)
        acc = tl.mma(p.astype(tl.bf16), vals, acc * fix[:, None])
        high = higher
    result = (acc / total[:, None]).astype(tl.bf16)
    tl.store(out, (b, h, i, 0), result.reshape((1, 1, BM, D)), mask=True)
