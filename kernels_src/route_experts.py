"""The experts of each token and their weights: softmax, then the largest (Shazeer et al., Outrageously Large Neural Networks,
2017)."""

import tilec as tl

from .dims import E, T
from .experts_dims import C, X

LOG2E = 1.4426950408889634


@tl.kernel
def route_experts(
    logits: tl.In[E, T, X],
    experts: tl.Out[tl.i32, T, C],
    weights: tl.Out[tl.f32, T, C],
    *,
    E: tl.Const,
    X: tl.Const,
    C: tl.Const,
    NORMALIZE: tl.Const,
    EXPERTS: tl.Const,
):
    """The C experts with the largest logits of each token, the largest first, the lower one among equals. Their weights are
    `softmax(logits)`, in f32, divided by the sum of the C if NORMALIZE. EXPERTS is X rounded up to a power of two. NaN counts
    as the largest logit, and makes the weights of its token NaN.

    Keys sort as logits do, with the expert below: so no two are equal, and threads exchange one number for both. Experts of a
    token differ because a sort takes each key once; what pads X has the key of -inf, which no logit is below."""
    assert C <= X and X <= EXPERTS
    assert EXPERTS <= 65536
    tl.grid(T)
    tl.ensures(experts, 0, X, distinct_in_rows=True)
    t = tl.bid(0)
    v = tl.load(logits, (t, 0), shape=(1, EXPERTS), pad=-tl.inf)
    bits = tl.bitcast(tl.where(v == 0.0, 0.0, v), tl.u16).astype(tl.u32)  # one zero
    bits = tl.where(tl.isnan(v), 0x7FFF, bits)
    rising = tl.where(bits >= 0x8000, 0xFFFF - bits, bits + 0x8000)
    place = tl.arange(EXPERTS)[None, :]
    if X < EXPERTS:  # changes nothing, and shows it without knowing how floats are stored
        least = 0xFFFF - tl.bitcast(tl.full((1, 1), -tl.inf, E), tl.u16).astype(tl.u32)
        rising = tl.where(place < X, tl.maximum(rising, least), least)
    keys = tl.sort(rising * 65536 + (EXPERTS - 1 - place).astype(tl.u32), 1, descending=True)
    rising = keys // 65536
    v = tl.bitcast(tl.where(rising < 0x8000, 0xFFFF - rising, rising - 0x8000).astype(tl.u16), E).astype(tl.f32)
    weight = tl.exp2((v - tl.max(v, axis=1)[:, None]) * LOG2E, fast=True)
    scale = 1.0 / tl.sum(tl.where(place < C, weight, 0.0) if NORMALIZE else weight, axis=1)
    tl.store(weights, (t, 0), weight * scale[:, None], mask=True)
    tl.store(experts, (t, 0), tl.minimum(EXPERTS - 1 - (keys % EXPERTS).astype(tl.i32), X - 1), mask=True)
