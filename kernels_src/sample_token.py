"""Draws the next token from the candidates of `topk_blocks`: top-k, then temperature, then top-p, then chance."""

import tilec as tl

from .dims import B, P


class K(tl.Dim):
    """candidates per part"""


class S(tl.Dim):
    """places that have a random number"""


@tl.kernel
def sample_token(
    best: tl.In[tl.f32, B, P, K],
    indices: tl.In[tl.i32, B, P, K],
    top_k: tl.In[tl.i32, B],
    temperature: tl.In[tl.f32, B],
    top_p: tl.In[tl.f32, B],
    uniforms: tl.In[tl.f32, B, S],
    place: tl.In[tl.i32, B],
    token: tl.Out[tl.i32, B],
    *,
    PARTS: tl.Const,
    KEEP: tl.Const,
):
    """Of a row's candidates, descending in each part, the `top_k` greatest stay, the lowest column first among equals; their
    weights are `exp((logit - greatest) / temperature)`. Of these the fewest stay that reach `top_p` of the weight, and the
    first is drawn whose running sum exceeds `uniforms[place]` of what stays. `temperature` is positive, `0 < top_p <= 1`,
    `0 <= uniforms < 1`; at most PARTS parts and KEEP candidates. Without a finite logit the token is 2147483647.
    """
    tl.grid(B)
    tl.requires(P <= PARTS and K <= KEEP)
    tl.values(top_k, 1, K + 1)
    tl.values(place, 0, S)
    row = tl.bid(0)
    parts, ranks = tl.arange(PARTS), tl.arange(KEEP)
    depths = tl.zeros((PARTS,), tl.i32)
    heads = tl.gather(best, (row, parts, depths), pad=-tl.inf)
    columns = tl.gather(indices, (row, parts, depths), pad=2147483647)
    logits = tl.full((KEEP,), -tl.inf, tl.f32)
    tokens = tl.zeros((KEEP,), tl.i32)
    for k in range(tl.load(top_k, row)):
        greatest = tl.max(heads)
        column = tl.min(tl.where(heads == greatest, columns, 2147483647))
        logits = tl.where(ranks == k, greatest, logits)
        tokens = tl.where(ranks == k, column, tokens)
        depths = tl.where(columns == column, tl.minimum(depths, KEEP) + 1, depths)
        heads = tl.gather(best, (row, parts, depths), pad=-tl.inf)
        columns = tl.gather(indices, (row, parts, depths), pad=2147483647)
    weights = tl.exp((logits - tl.max(logits)) / tl.load(temperature, row), fast=True)
    before = tl.sum(tl.where(ranks[None, :] < ranks[:, None], weights[None, :], 0.0), axis=1)
    kept = (before < tl.sum(weights) * tl.load(top_p, row)) & (weights > 0.0)
    goal = tl.load(uniforms, (row, tl.load(place, row))) * tl.sum(tl.where(kept, weights, 0.0))
    passed = tl.sum(tl.where(kept & (before + weights <= goal), 1, 0))
    left = tl.sum(tl.where(kept, 1, 0))
    drawn = tl.sum(tl.where(ranks == tl.minimum(passed, left - 1), tokens, 0))
    tl.store(token, row, tl.where(left > 0, drawn, 2147483647))
