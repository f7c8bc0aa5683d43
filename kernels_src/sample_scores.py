"""Scores of tokens as sampling sees them: logits after penalties, bias and bars, in an order without ties, and their weights.

The order is that of a key: greater scores first, and among equal ones lower tokens. A row's arithmetic is its own, and sums of
weights are of integers, so that no order of additions changes them.
"""

# pyright: reportMissingParameterType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownParameterType=false, reportUnknownVariableType=false

import tilec as tl

LOG2E = 1.4426950408889634
LAST = 2147483647
GROUP = 32  # tokens whose greatest score is kept
KEEP = 64  # tokens that are drawn from without a pass over all
COUNT = 0xFFFFFF  # bits of a token's state: how often the generation has it,
IN_PROMPT = 0x1000000  # whether the prompt has it,
EARLY = 0x2000000  # whether it is barred until a number of tokens is drawn,
BARRED = 0x4000000  # or for good
TOP_K = 0  # columns of a row's numbers
TOP_P = 1
MIN_P = 2
SEED = 3
SEED_HIGH = 4
FIRST = 5
MIN_TOKENS = 6
ASKS = 7
ADJUSTED = 1  # bits of ASKS
PROBABILITIES = 2
TEMPERATURE = 0  # columns of its factors
REPETITION = 1
FREQUENCY = 2
PRESENCE = 3


class GROUPS(tl.Dim):
    """groups of tokens of a row"""


class NUMBERS(tl.Dim):
    """integers of a row's parameters"""


class FACTORS(tl.Dim):
    """floats of a row's parameters"""


@tl.function
def rules_of(numbers, factors, positions, row):
    """What `adjusted` does to a row: penalties, and whether tokens barred at first still are."""
    drawn = tl.load(positions, row) - tl.load(numbers, (row, FIRST))
    repetition, frequency = tl.load(factors, (row, REPETITION)), tl.load(factors, (row, FREQUENCY))
    return repetition, frequency, tl.load(factors, (row, PRESENCE)), drawn < tl.load(numbers, (row, MIN_TOKENS))


@tl.function
def adjusted(x, state, bias, rules):
    """Scores of logits: a token of prompt or generation is divided by `repetition` if it is positive, else multiplied; then
    `frequency` is subtracted for each time that the generation has it, `presence` if it has it at all, and `bias` added. Barred
    tokens, and while `early` those barred at first, are -inf."""
    repetition, frequency, presence, early = rules
    count = state & COUNT
    x = tl.where((state & (COUNT | IN_PROMPT)) != 0, tl.where(x > 0.0, x / repetition, x * repetition), x)
    x = x - frequency * count.astype(tl.f32)
    x = x - tl.where(count > 0, presence, 0.0)
    bars = BARRED | EARLY if early else BARRED
    return tl.where((state & bars) != 0, -tl.inf, x + bias)


@tl.function
def rising(x):
    """Integers in the order of floats; the zeros are equal."""
    bits = tl.bitcast(tl.where(x == 0.0, 0.0, x), tl.i32)
    return bits ^ ((bits >> 31) & LAST)


@tl.function
def keyed(x, token):
    """Different integers in the order of sampling."""
    return (rising(x).astype(tl.i64) << 32) | (LAST - token).astype(tl.i64)


@tl.function
def token_of(key):
    """The token of a key."""
    return LAST - (key & LAST).astype(tl.i32)


@tl.function
def score_of(key):
    """The score of a key."""
    bits = (key >> 32).astype(tl.i32)
    return tl.bitcast(bits ^ ((bits >> 31) & LAST), tl.f32)


@tl.function
def greatest_keys(keys):
    """The KEEP greatest of a tile's keys, descending."""
    ordered = tl.sort(keys, 0, descending=True)
    runs = keys.shape[0] // KEEP
    first = (tl.arange(runs) == 0)[:, None]
    return tl.sum(tl.where(first, tl.reshape(ordered, (runs, KEEP)), 0), axis=0)


@tl.function
def scores_at(source, tokens):
    """Scores of tokens of a row; those past the vocabulary are -inf."""
    logits, state, bias, row, adjusts, rules = source
    x = tl.gather(logits, (row, tokens), pad=-tl.inf).astype(tl.f32)
    if adjusts:
        x = adjusted(x, tl.gather(state, (row, tokens), pad=0), tl.gather(bias, (row, tokens), pad=0), rules)
    return x


@tl.function
def first_keys(source, maxima, row, supers, SUPERS):
    """The keys of a row's first KEEP tokens, descending. `maxima` has the greatest score of each group of tokens, and `supers`
    are those of each group of groups, (SUPERS,). A token is among the first only if its group is, and that only if its group of
    groups is: each group before it has a token before it."""
    keys = greatest_keys(keyed(supers, tl.arange(SUPERS)))
    for level in range(2):  # groups of these, then tokens of those
        within = tl.minimum(token_of(keys), SUPERS * GROUP - 1)[:, None] * GROUP + tl.arange(GROUP)[None, :]
        scores = tl.full((KEEP, GROUP), -tl.inf, tl.f32)
        if level == 0:
            scores = tl.gather(maxima, (row, within), pad=-tl.inf)
        else:
            scores = scores_at(source, within)
        keys = greatest_keys(tl.reshape(keyed(scores, within), (KEEP * GROUP,)))
    return keys


@tl.function
def weight_of(x, scale):
    """`exp((x - greatest) / temperature)` in units of 2^-40, rounded down; `scale` is both."""
    greatest, temperature = scale
    share = tl.exp2((x - greatest) * (LOG2E / temperature), fast=True)
    return (share * 1099511627776.0).astype(tl.i64)


@tl.function
def part_of(mass, share):
    """`mass * share / 2^30`, rounded down, of a mass below 2^59 and a share up to 2^30."""
    return (mass >> 30) * share + (((mass & 0x3FFFFFFF) * share) >> 30)
