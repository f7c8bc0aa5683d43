"""Choices of experts in the order of experts, chunk by chunk: the first step of a counting sort."""

from typing import Literal

import tilec as tl

from .dims import T
from .experts_dims import C, X
from .experts_tiling import P


@tl.kernel
def experts_sort(
    experts: tl.In[tl.i32, T, C],
    order: tl.Out[tl.i32, P, Literal["BLOCK"]],
    ranks: tl.Out[tl.i32, P, Literal["BLOCK"]],
    counts: tl.Out[tl.i32, X, P],
    begins: tl.Out[tl.i32, X, P],
    *,
    C: tl.Const,
    X: tl.Const,
    BLOCK: tl.Const,
):
    """Chunk p has BLOCK choices. `order[p]` are their numbers in the chunk in the order of experts, those of an expert in their
    own; `counts[e, p]` are of expert e, and begin at `begins[e, p]` there. `ranks[p, i]` of the choices before choice i are of
    its expert. Choices past the end come last."""
    assert BLOCK % C == 0
    tl.values(experts, 0, X)
    tl.requires(tl.cdiv(T, BLOCK // C) == P)
    tl.grid(P)
    p = tl.bid(0)
    chosen = tl.reshape(tl.load(experts, (p, 0), shape=(BLOCK // C, C), pad=X), (BLOCK,))
    sorted_choices = tl.argsort(chosen, 0)
    count = tl.sum(tl.where(chosen[:, None] == tl.arange(X)[None, :], 1, 0), axis=0)
    begin = tl.cumsum(count, 0, exclusive=True)
    own = tl.minimum(tl.take(chosen, sorted_choices, 0), X - 1)
    rank = tl.arange(BLOCK) - tl.take(begin, own, 0)
    tl.store(order, (p, 0), sorted_choices[None, :])
    tl.scatter(ranks, (p, sorted_choices), rank)
    tl.store(counts, (0, p), count[:, None])
    tl.store(begins, (0, p), begin[:, None])
