"""Where the running sum over a row's tokens, in the order of sampling, reaches a target: found by passes that add what lies
between two scores, without a sort.

Branches here compare floats: an integer that decides one would have to be proven small, and sums of weights need no proof.
"""

# pyright: reportMissingParameterType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownParameterType=false, reportUnknownVariableType=false

import tilec as tl

from .sample_scores import LAST, adjusted, rising, weight_of

COARSE = 13  # low bits of a score that are zero for logits of 16 bits
NO_WEIGHT = 28.0  # `exp(-28)` is below the unit of weights


@tl.function
def box_scores(source, part, BLOCK):
    """Scores of BLOCK tokens of a row, (BLOCK,); those after the last are -inf."""
    logits, state, bias, row, adjusts, rules = source
    x = tl.reshape(tl.load(logits, (row, part), shape=(1, BLOCK), pad=-tl.inf), (BLOCK,)).astype(tl.f32)
    if adjusts:
        marks = tl.reshape(tl.load(state, (row, part), shape=(1, BLOCK), pad=0), (BLOCK,))
        added = tl.reshape(tl.load(bias, (row, part), shape=(1, BLOCK), pad=0), (BLOCK,))
        x = adjusted(x, marks, added, rules)
    return x


@tl.function
def sum_between(source, scale, V, BLOCK, shift, low, high, least, counting):
    """The weight of the tokens whose scores, as integers without their low `shift` bits, are from `low` to below `high`, and
    whose weight is at least `least`; their number, if `counting`."""
    total = tl.zeros((BLOCK,), tl.i64)
    for part in range(tl.cdiv(V, BLOCK)):
        x = box_scores(source, part, BLOCK)
        key = (rising(x) >> shift).astype(tl.i64)
        weight = weight_of(x, scale)
        inside = (key >= low) & (key < high) & (weight >= least)
        total = total + tl.where(inside, tl.where(counting, 1, weight), 0)
    return tl.sum(total)


@tl.function
def reached(source, scale, V, BLOCK, shift, low, high, above, target, counting):
    """The first token at which the running sum is at least `target`: its score as an integer without `shift` low bits, the sum
    over greater scores, the token's weight, and which token of that score it is, from 1. Sums are of weights, or of tokens if
    `counting`. Of scores above `high` the sum is `above`, less than `target`; of those from `low` on it is not less."""
    low, high = (low >> shift).astype(tl.i64), (high >> shift).astype(tl.i64) + 1
    for _ in range(33):
        if (high - low).astype(tl.f32) > 1.5:
            middle = low + ((high - low) >> 1)
            more = sum_between(source, scale, V, BLOCK, shift, middle, high, 0, counting)
            enough = above + more >= target
            low = tl.where(enough, middle, low)
            high = tl.where(enough, high, middle)
            above = tl.where(enough, above, above + more)
    bits = low.astype(tl.i32) << shift
    bits = bits + tl.where(bits < 0, (1 << shift) - 1, 0)
    weight = weight_of(tl.bitcast(bits ^ ((bits >> 31) & LAST), tl.f32), scale)
    each = tl.where(counting, 1, tl.maximum(weight, 1))
    return low, above, weight, (target - above + each - 1) // each


@tl.function
def nth_of_score(source, V, BLOCK, shift, score, number):
    """The token that is the `number`-th, from 1, of those with a score."""
    before, found = tl.i64(0), tl.i32(LAST)
    for part in range(tl.cdiv(V, BLOCK)):
        equal = tl.where((rising(box_scores(source, part, BLOCK)) >> shift).astype(tl.i64) == score, 1, 0)
        here = tl.sum(equal).astype(tl.i64)
        at = tl.sum(tl.where(tl.cumsum(equal, 0).astype(tl.i64) < number - before, 1, 0))
        found = tl.where((before < number) & (number <= before + here), part * BLOCK + at, found)
        before = before + here
    return found
