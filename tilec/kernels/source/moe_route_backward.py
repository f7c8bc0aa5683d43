"""Gradient of the weights of experts."""

import tilec as tl

LOG2E = 1.4426950408889634


class E(tl.Element):
    """bf16, f16 or f32"""


class T(tl.Dim):
    """tokens"""


class X(tl.Dim):
    """experts"""


class K(tl.Dim):
    """experts of a token"""


@tl.kernel
def moe_route_backward(
    dweights: tl.In[tl.f32, T, K],
    logits: tl.In[E, T, X],
    weights: tl.In[tl.f32, T, K],
    experts: tl.In[tl.i32, T, K],
    dlogits: tl.Out[E, T, X],
    normalize: tl.i32,
    *,
    E: tl.Const,
    ROWS: tl.Const,
    EXPERTS: tl.Const,
):
    """With `p` the softmax that the weights are of, 0 where an expert is not in it, and `dp` their gradient, 0 for experts that
    were not chosen: `dlogits = p * (dp - sum(p * dp))`, in f32, rounded once."""
    tl.requires(X <= EXPERTS)
    tl.grid(tl.cdiv(T, ROWS))
    tokens = tl.bid(0)
    columns = tl.arange(EXPERTS)[None, :]
    p, dp = tl.zeros((ROWS, EXPERTS), tl.f32), tl.zeros((ROWS, EXPERTS), tl.f32)
    for j in range(K):
        is_here = columns == tl.load(experts, (tokens, j), shape=(ROWS, 1), pad=-1)
        p = tl.where(is_here, tl.load(weights, (tokens, j), shape=(ROWS, 1), pad=0), p)
        dp = tl.where(is_here, tl.load(dweights, (tokens, j), shape=(ROWS, 1), pad=0), dp)
    slope = tl.sum(p * dp, axis=1)[:, None]
    v = tl.load(logits, (tokens, 0), shape=(ROWS, EXPERTS), pad=-tl.inf).astype(tl.f32)
    weight = tl.exp2((v - tl.max(v, axis=1)[:, None]) * LOG2E, fast=True)
    of_all = weight * (1.0 / tl.sum(weight, axis=1))[:, None]
    tl.store(dlogits, (tokens, 0), (tl.where(normalize != 0, p, of_all) * (dp - slope)).astype(E), mask=True)
