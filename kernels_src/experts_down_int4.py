"""Down projections of the experts of each token, summed by their weights, with INT4 weights (Shazeer et al., Outrageously Large
Neural Networks, 2017)."""

from typing import Literal

import tilec as tl

from .dims import E, K, N, T
from .experts_dims import C, X
from .experts_sums import weighted_sums_int4
from .int4_groups import GROUP as COLUMNS


class F(tl.Element):
    """bf16 or f16"""


@tl.kernel
def experts_down_int4(
    x: tl.In[E, T, C, K],
    experts: tl.In[tl.i32, T, C],
    weights: tl.In[tl.f32, T, C],
    w: tl.In[tl.u32, X, N, Literal["K // 8"]],
    w_scales: tl.In[F, X, Literal["K // 128"], N],
    w_zeros: tl.In[tl.u8, X, Literal["K // 128"], N],
    out: tl.Out[E, T, N],
    *,
    E: tl.Const,
    F: tl.Const,
    K: tl.Const,
    C: tl.Const,
    ROWS: tl.Const,
    SPLIT: tl.Const,
):
    """`experts_down` with the weights of `int4_groups`; ROWS outputs of one token per block, SPLIT groups of weights at a
    time."""
    tl.grid(T, N // ROWS)
    tl.requires(K % (SPLIT * COLUMNS) == 0 and N % ROWS == 0)
    tl.values(experts, 0, X)
    tl.resident(w, w_scales, w_zeros)
    t, n = tl.bid(0), tl.bid(1)
    sums = weighted_sums_int4(x, experts, weights, w, w_scales, w_zeros, t, n, K, C, ROWS, SPLIT, E)
    tl.store(out, (t, n), tl.astype(sums, E))
