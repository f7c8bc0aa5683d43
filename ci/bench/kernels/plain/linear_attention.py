"""Causal linear attention with feature map elu + 1, in chunks."""

import tilec as tl


class B(tl.Dim):
    """heads"""


class T(tl.Dim):
    """tokens"""


class D(tl.Dim):
    """elements of a head"""


@tl.function
def phi(x):
    return tl.where(x > 0, x + 1, tl.exp(x))


@tl.kernel
def linear_attention(
    q: tl.In[tl.bf16, B, T, D],
    k: tl.In[tl.bf16, B, T, D],
    v: tl.In[tl.bf16, B, T, D],
    out: tl.Out[tl.bf16, B, T, D],
    *,
    D: tl.Const,
    C: tl.Const,
):
    tl.grid(B)
    b = tl.bid(0)
    state = tl.zeros((D, D), tl.f32)
    z = tl.zeros((1, D), tl.f32)
    for c in range(tl.cdiv(T, C)):
        fq = phi(tl.load(q, (b, c, 0), shape=(1, C, D), pad=0).reshape((C, D)).astype(tl.f32))
        fk = phi(tl.load(k, (b, c, 0), shape=(1, C, D), pad=0).reshape((C, D)).astype(tl.f32))
        vc = tl.load(v, (b, c, 0), shape=(1, C, D), pad=0).reshape((C, D))
        hq, hk = fq.astype(tl.bf16), fk.astype(tl.bf16)
        scores = hq @ hk.T
        scores = tl.where(tl.arange(C)[None, :] <= tl.arange(C)[:, None], scores, 0)
        top = tl.mma(scores.astype(tl.bf16), vc, hq @ state.astype(tl.bf16))
        norm = tl.sum(scores, axis=1) + tl.sum(fq * z, axis=1)
        tl.store(out, (b, c, 0), (top / norm[:, None]).astype(tl.bf16).reshape((1, C, D)), mask=True)
        state = tl.mma(hk.T, vc, state)
        z = z + tl.sum(fk, axis=0, keepdims=True)
