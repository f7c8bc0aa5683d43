"""The end of sampling: counts the tokens that rows drew, and reports the probabilities that rows ask for."""

# pyright: reportCallIssue=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnnecessaryComparison=false

from typing import Literal

import tilec as tl

from .dims import B, E, V
from .sample_scores import (
    ADJUSTED,
    ASKS,
    GROUP,
    GROUPS,
    LAST,
    LOG2E,
    NUMBERS,
    PROBABILITIES,
    first_keys,
    score_of,
    token_of,
)


@tl.kernel
def sample_report(
    logits: tl.In[E, B, V],
    token: tl.In[tl.i32, B],
    numbers: tl.In[tl.i32, B, NUMBERS],
    state: tl.InOut[tl.i32, B, V],
    bias: tl.In[tl.f32, B, V],
    maxima: tl.InOut[tl.f32, B, GROUPS],
    tokens: tl.Out[tl.i32, B, Literal["TOP"]],
    logprobs: tl.Out[tl.f32, B, Literal["TOP + 1"]],
    *,
    E: tl.Const,
    SUPERS: tl.Const,
    BLOCK: tl.Const,
    ALIGN: tl.Const,
    TOP: tl.Const,
):
    """Where a row's scores are adjusted, the count of its token in `state` is one more (`sample_scores`). Where it asks for
    probabilities, `logprobs[b]` are the logarithm of its token's, among all and before any parameter, and of the TOP greatest,
    descending, and `tokens[b]` are theirs, the lower one first among equals; else -1 and 0. There `maxima` becomes that of the
    logits themselves. TOP is at most 64."""
    assert TOP <= 64
    tl.requires(V % ALIGN == 0, tl.cdiv(V, GROUP) == GROUPS, NUMBERS == 8, GROUPS <= SUPERS * GROUP)
    tl.grid(B)
    row = tl.bid(0)
    drawn = tl.load(token, row)
    at = tl.minimum(tl.maximum(drawn, 0), V - 1)
    asks = tl.load(numbers, (row, ASKS))
    if (asks & ADJUSTED) != 0:
        tl.store(state, (row, at), tl.load(state, (row, at)) + tl.where(at == drawn, 1, 0))
    ranks = tl.arange(64)
    best = tl.full((64,), -1, tl.i32)
    found = tl.zeros((64,), tl.f32)
    own = tl.f32(0.0)
    if (asks & PROBABILITIES) != 0:
        greatest = tl.f32(-tl.inf)
        for part in range(tl.cdiv(V, BLOCK)):
            x = tl.load(logits, (row, part), shape=(1, BLOCK), pad=-tl.inf).astype(tl.f32)
            high = tl.max(tl.reshape(x, (1, BLOCK // GROUP, GROUP)), axis=2)
            tl.store(maxima, (row, part), high, mask=True)
            greatest = tl.maximum(greatest, tl.max(high))
        total = tl.zeros((1, BLOCK), tl.f32)
        for part in range(tl.cdiv(V, BLOCK)):
            x = tl.load(logits, (row, part), shape=(1, BLOCK), pad=-tl.inf).astype(tl.f32)
            total = total + tl.exp2((x - greatest) * LOG2E, fast=True)
        norm = greatest + tl.log(tl.sum(total))
        firsts = tl.load(maxima, (row, 0), shape=(1, SUPERS * GROUP), pad=-tl.inf)
        supers = tl.max(tl.reshape(firsts, (SUPERS, GROUP)), axis=1)
        rules = tl.f32(1.0), tl.f32(0.0), tl.f32(0.0), False
        keys = first_keys((logits, state, bias, row, False, rules), maxima, row, supers, SUPERS)
        best = tl.where(ranks < TOP, token_of(keys), LAST)
        found = score_of(keys) - norm
        own = tl.load(logits, (row, at)).astype(tl.f32) - norm
    tl.store(tokens, (row, 0), best[None, :], mask=True)
    tl.store(logprobs, (row, 0), tl.reshape(own, (1, 1)))
    tl.store(logprobs, offset=(row, 1), tile=found[None, :], mask=True)
