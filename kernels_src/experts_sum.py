"""The weighted sum of each token's experts, from rows in the order of experts (Shazeer et al., Outrageously Large Neural
Networks, 2017): a rank's part of it, where each rank has a part of every row."""

import tilec as tl

from .dims import E, H, T
from .experts_combine import R
from .experts_dims import C


@tl.kernel
def experts_sum(
    y: tl.In[E, R, H],
    places: tl.In[tl.i32, T, C],
    weights: tl.In[tl.f32, T, C],
    out: tl.Out[E, T, H],
    *,
    E: tl.Const,
    H: tl.Const,
    C: tl.Const,
):
    """`out[t] = sum of weights[t, c] * y[places[t, c]]`, in f32 and in the order of c, rounded once."""
    tl.values(places, 0, R)
    tl.grid(T)
    t = tl.bid(0)
    total = tl.zeros((1, H), tl.f32)
    for c in tl.static_range(C):
        total = total + tl.load(weights, (t, c)) * tl.load(y, (tl.load(places, (t, c)), 0), shape=(1, H)).astype(tl.f32)
    tl.store(out, (t, 0), tl.astype(total, E))
