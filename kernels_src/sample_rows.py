"""Draws the next token of each row, of any part of the vocabulary: top-k, then top-p, then min-p, then chance."""

# pyright: reportMissingParameterType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownParameterType=false, reportUnknownVariableType=false, reportUnnecessaryComparison=false

import tilec as tl

from .dims import B, E, V
from .sample_scores import (
    ADJUSTED,
    ASKS,
    FACTORS,
    FIRST,
    GROUP,
    GROUPS,
    KEEP,
    LAST,
    MIN_P,
    NUMBERS,
    SEED,
    SEED_HIGH,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    first_keys,
    part_of,
    rising,
    rules_of,
    score_of,
    scores_at,
    token_of,
    weight_of,
)
from .sample_search import COARSE, NO_WEIGHT, nth_of_score, reached, sum_between

WHOLE = 0x40000000  # a share of 1
LOWEST = -2139095041  # -inf as an integer
MULTIPLIER_0 = 0xD2511F53
MULTIPLIER_1 = 0xCD9E8D57
WEYL_0 = 0x9E3779B9
WEYL_1 = 0xBB67AE85


@tl.function
def random_share(numbers, positions, row):
    """The random number of a row's next token, 24 bits in units of 2^-30: the first word of Philox-4x32-10 (Salmon and others,
    Parallel Random Numbers, SC 2011) at the counter (number of the token, 0, 0, 0)."""
    drawn = tl.load(positions, row) - tl.load(numbers, (row, FIRST))
    c0, c1, c2, c3 = drawn.astype(tl.u32), tl.u32(0), tl.u32(0), tl.u32(0)
    k0, k1 = tl.bitcast(tl.load(numbers, (row, SEED)), tl.u32), tl.bitcast(tl.load(numbers, (row, SEED_HIGH)), tl.u32)
    for _ in range(10):
        c0, c1, c2, c3 = (
            tl.mulhi(c2, MULTIPLIER_1) ^ c1 ^ k0,
            c2 * MULTIPLIER_1,
            tl.mulhi(c0, MULTIPLIER_0) ^ c3 ^ k1,
            c0 * MULTIPLIER_0,
        )
        k0, k1 = k0 + WEYL_0, k1 + WEYL_1
    return (c0 >> 8).astype(tl.i64) << 6


@tl.function
def drawn_token(source, scale, maxima, supers, numbers, positions, row, shift, V, SUPERS, BLOCK):
    """The token that chance chooses. Each of three cuts ends where a running sum reaches a target: top-k, top-p, the draw."""
    greatest, temperature = scale
    keys = first_keys(source, maxima, row, supers, SUPERS)
    scores = rising(score_of(keys))
    weights = weight_of(score_of(keys), scale)
    running, ranks = tl.cumsum(weights, 0), tl.arange(KEEP)
    # Where a search begins: the sum of what is above the last of these scores is known.
    least = tl.min(scores)
    sure = tl.sum(tl.where(scores > least, weights, 0))
    sure_count = tl.sum(tl.where(scores > least, 1, 0)).astype(tl.i64)
    lowest = rising(greatest - NO_WEIGHT * temperature)
    top_k, top_p = tl.load(numbers, (row, TOP_K)), tl.load(numbers, (row, TOP_P))
    floor = tl.load(numbers, (row, MIN_P)).astype(tl.i64) << 10
    chance = random_share(numbers, positions, row)

    mass = tl.sum(tl.where(ranks < top_k, weights, 0))  # of what the cuts so far leave
    boundary = tl.sum(tl.where(ranks == top_k - 1, weights, 0))  # the weight of the last token of it
    token = tl.i32(LAST)
    for cut in range(3):
        if cut == 2 and (floor - boundary).astype(tl.f32) > 0.0:
            mass = tl.sum(tl.where(weights >= floor, weights, 0))
            if (floor - tl.min(weights)).astype(tl.f32) <= 0.0:
                mass = sum_between(source, scale, V, BLOCK, 0, -tl.i64(LAST) - 1, tl.i64(LAST) + 1, floor, False)
        target = top_k.astype(tl.i64)
        if cut > 0:
            target = tl.maximum(part_of(mass, top_p.astype(tl.i64)), 1) if cut == 1 else part_of(mass, chance) + 1
        if top_k > KEEP if cut == 0 else (top_p < WHOLE if cut == 1 else True):
            known = tl.where(cut > 0, tl.max(running), 0)
            if (known - target).astype(tl.f32) >= 0.0:
                rank = tl.sum(tl.where(running < target, 1, 0))
                mass = tl.sum(tl.where(ranks <= rank, weights, 0))
                boundary = tl.sum(tl.where(ranks == rank, weights, 0))
                token = tl.sum(tl.where(ranks == rank, token_of(keys), 0))
            else:
                score, before, weight, ties = -tl.i64(LAST) - 2, tl.i64(0), tl.i64(0), tl.i64(0)
                if top_k < V if cut == 0 else True:
                    score, before, weight, ties = reached(
                        source, scale, V, BLOCK, shift, tl.i32(LOWEST) if cut == 0 else lowest, least,
                        sure_count if cut == 0 else sure, target, cut == 0,
                    )  # fmt: skip
                if cut == 0:
                    before = sum_between(source, scale, V, BLOCK, shift, score + 1, tl.i64(LAST) + 1, 0, False)
                if cut == 2:
                    token = nth_of_score(source, V, BLOCK, shift, score, ties)
                mass, boundary = before + ties * weight, weight
    return token


@tl.kernel
def sample_rows(
    logits: tl.In[E, B, V],
    maxima: tl.In[tl.f32, B, GROUPS],
    state: tl.In[tl.i32, B, V],
    bias: tl.In[tl.f32, B, V],
    numbers: tl.In[tl.i32, B, NUMBERS],
    factors: tl.In[tl.f32, B, FACTORS],
    positions: tl.In[tl.i32, B],
    token: tl.Out[tl.i32, B],
    *,
    E: tl.Const,
    SUPERS: tl.Const,
    BLOCK: tl.Const,
    ALIGN: tl.Const,
):
    """The token of each row, 2147483647 if its logits are not finite or all tokens are barred. Tokens are in the order of their
    scores, the lower one first among equals, and have weights `exp((score - greatest) / temperature)`. The first `TOP_K` stay;
    of these the fewest whose weight reaches `TOP_P`; of these those with at least `MIN_P` of the greatest weight. Drawn is the
    first whose running sum exceeds the random number's part of what stays. A row with a `TOP_K` of 1 takes the first token and
    computes nothing else; where the first 64 decide, no pass over the vocabulary is made. At most SUPERS * 1024 tokens."""
    tl.requires(V % ALIGN == 0, tl.cdiv(V, GROUP) == GROUPS, NUMBERS == 8, FACTORS == 4, GROUPS <= SUPERS * GROUP)
    tl.values(positions, 0, 1 << 30)
    tl.grid(B)
    row = tl.bid(0)
    firsts = tl.load(maxima, (row, 0), shape=(1, SUPERS * GROUP), pad=-tl.inf)
    supers = tl.max(tl.reshape(firsts, (SUPERS, GROUP)), axis=1)
    greatest = tl.max(supers)
    adjusts = (tl.load(numbers, (row, ASKS)) & ADJUSTED) != 0
    rules = rules_of(numbers, factors, positions, row)
    source = logits, state, bias, row, adjusts, rules
    scale = greatest, tl.load(factors, (row, TEMPERATURE))
    shift = 0 if adjusts else COARSE
    chosen = tl.i32(LAST)
    if (greatest > -tl.inf) & (greatest < tl.inf):
        if tl.load(numbers, (row, TOP_K)) == 1:
            groups = tl.argmax(supers, axis=0) * GROUP + tl.arange(GROUP)
            first = tl.argmax(tl.gather(maxima, (row, groups), pad=-tl.inf), axis=0) + tl.argmax(supers, axis=0) * GROUP
            chosen = first * GROUP + tl.argmax(scores_at(source, first * GROUP + tl.arange(GROUP)), axis=0)
        else:
            chosen = drawn_token(source, scale, maxima, supers, numbers, positions, row, shift, V, SUPERS, BLOCK)
    tl.store(token, row, chosen)
