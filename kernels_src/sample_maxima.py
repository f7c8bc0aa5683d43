"""The first step of sampling: the greatest score of each group of 32 tokens."""

# pyright: reportUnknownVariableType=false, reportUnnecessaryComparison=false

import tilec as tl

from .dims import B, E, V
from .sample_scores import ADJUSTED, ASKS, FACTORS, GROUP, GROUPS, NUMBERS, adjusted, rules_of


class P(tl.Dim):
    """blocks of a row"""


@tl.kernel
def sample_maxima(
    logits: tl.In[E, B, V],
    state: tl.In[tl.i32, B, V],
    bias: tl.In[tl.f32, B, V],
    numbers: tl.In[tl.i32, B, NUMBERS],
    factors: tl.In[tl.f32, B, FACTORS],
    positions: tl.In[tl.i32, B],
    maxima: tl.Out[tl.f32, B, GROUPS],
    *,
    E: tl.Const,
    BLOCK: tl.Const,
    ALIGN: tl.Const,
):
    """`maxima[b, g]` is the greatest score of tokens 32 g to 32 g + 31, and infinite if a logit of them is NaN or infinite.
    Only rows that ask for adjusted scores read `state` and `bias` (`sample_scores`)."""
    assert BLOCK % GROUP == 0
    tl.requires(V % ALIGN == 0, tl.cdiv(V, GROUP) == GROUPS, NUMBERS == 8, FACTORS == 4)
    tl.values(positions, 0, 1 << 30)
    tl.grid(tl.cdiv(V, BLOCK), B)
    part, row = tl.bid(0), tl.bid(1)
    x = tl.load(logits, (row, part), shape=(1, BLOCK), pad=-tl.inf).astype(tl.f32)
    wrong = tl.isnan(x) | (x == tl.inf)
    if (tl.load(numbers, (row, ASKS)) & ADJUSTED) != 0:
        marks = tl.load(state, (row, part), shape=(1, BLOCK), pad=0)
        added = tl.load(bias, (row, part), shape=(1, BLOCK), pad=0)
        x = adjusted(x, marks, added, rules_of(numbers, factors, positions, row))
    x = tl.reshape(tl.where(wrong, tl.inf, x), (1, BLOCK // GROUP, GROUP))
    tl.store(maxima, (row, part), tl.max(x, axis=2), mask=True)
