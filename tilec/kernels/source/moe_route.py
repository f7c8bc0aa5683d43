"""The experts of each token, and their weights."""

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
def moe_route(
    logits: tl.In[E, T, X],
    weights: tl.Out[tl.f32, T, K],
    experts: tl.Out[tl.i32, T, K],
    k: tl.i32,
    normalize: tl.i32,
    *,
    E: tl.Const,
    ROWS: tl.Const,
    MOST: tl.Const,
    EXPERTS: tl.Const,
):
    """The K experts with the largest logits of each token, the largest first, and their softmax: among all X experts, or among
    the K if `normalize` is not 0. `k` is K. A block takes ROWS tokens; there are at most EXPERTS experts, and MOST of a
    token."""
    tl.requires(X <= EXPERTS and K <= MOST and k == K)
    tl.grid(tl.cdiv(T, ROWS))
    tokens = tl.bid(0)
    v = tl.load(logits, (tokens, 0), shape=(ROWS, EXPERTS), pad=-tl.inf).astype(tl.f32)
    best, which = tl.topk(v, MOST, 1)
    top = tl.max(v, axis=1)[:, None]
    weight = tl.where(tl.arange(MOST)[None, :] < K, tl.exp2((best - top) * LOG2E, fast=True), 0)
    of_chosen, of_all = tl.sum(weight, axis=1), tl.sum(tl.exp2((v - top) * LOG2E, fast=True), axis=1)
    scale = 1.0 / tl.where(normalize != 0, of_chosen, of_all)
    tl.store(weights, (tokens, 0), weight * scale[:, None], mask=True)
    tl.store(experts, (tokens, 0), which, mask=True)
