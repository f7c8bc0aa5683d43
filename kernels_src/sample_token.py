"""Draws the next token from the candidates of `topk_blocks`: top-k, then temperature, then top-p, then chance."""

import tilec
from tilec import (
    Const,
    Dim,
    In,
    Out,
    arange,
    bid,
    exp,
    f32,
    full,
    gather,
    grid,
    i32,
    inf,
    load,
    max,
    min,
    minimum,
    requires,
    store,
    sum,
    values,
    where,
    zeros,
)


class B(Dim):
    """number of rows"""


class P(Dim):
    """parts per row"""


class K(Dim):
    """candidates per part"""


class S(Dim):
    """places that have a random number"""


@tilec.kernel
def sample_token(
    best: In[f32, B, P, K],
    indices: In[i32, B, P, K],
    top_k: In[i32, B],
    temperature: In[f32, B],
    top_p: In[f32, B],
    uniforms: In[f32, B, S],
    place: In[i32, B],
    token: Out[i32, B],
    *,
    PARTS: Const,
    KEEP: Const,
):
    """Of a row's candidates, descending in each part, the `top_k` greatest stay, the lowest column first among equals; their
    weights are `exp((logit - greatest) / temperature)`. Of these the fewest stay that reach `top_p` of the weight, and the
    first is drawn whose running sum exceeds `uniforms[place]` of what stays. `temperature` is positive, `0 < top_p <= 1`,
    `0 <= uniforms < 1`; at most PARTS parts and KEEP candidates. Without a finite logit the token is 2147483647.
    """
    grid(B)
    requires(P <= PARTS and K <= KEEP)
    values(top_k, 1, K + 1)
    values(place, 0, S)
    row = bid(0)
    parts, ranks = arange(PARTS), arange(KEEP)
    depths = zeros((PARTS,), i32)
    heads = gather(best, (row, parts, depths), pad=-inf)
    columns = gather(indices, (row, parts, depths), pad=2147483647)
    logits = full((KEEP,), -inf, f32)
    tokens = zeros((KEEP,), i32)
    for k in range(load(top_k, row)):
        greatest = max(heads)
        column = min(where(heads == greatest, columns, 2147483647))
        logits = where(ranks == k, greatest, logits)
        tokens = where(ranks == k, column, tokens)
        depths = where(columns == column, minimum(depths, KEEP) + 1, depths)
        heads = gather(best, (row, parts, depths), pad=-inf)
        columns = gather(indices, (row, parts, depths), pad=2147483647)
    weights = exp((logits - max(logits)) / load(temperature, row))
    before = sum(where(ranks[None, :] < ranks[:, None], weights[None, :], 0.0), axis=1)
    kept = (before < sum(weights) * load(top_p, row)) & (weights > 0.0)
    goal = load(uniforms, (row, load(place, row))) * sum(where(kept, weights, 0.0))
    passed = sum(where(kept & (before + weights <= goal), 1, 0))
    left = sum(where(kept, 1, 0))
    drawn = sum(where(ranks == minimum(passed, left - 1), tokens, 0))
    store(token, row, where(left > 0, drawn, 2147483647))
