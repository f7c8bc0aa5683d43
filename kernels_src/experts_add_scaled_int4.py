"""Down projections of the experts of each token, with the residual added, the next norm begun and INT4 weights (Zhang and
Sennrich, 2019; Shazeer et al., Outrageously Large Neural Networks, 2017)."""

from typing import Literal

import tilec as tl

from .dims import E, K, N, T
from .experts_dims import C, X
from .experts_sums import weighted_sums_int4
from .int4_groups import GROUP as COLUMNS


class P(tl.Dim):
    """groups of GROUP outputs"""


class F(tl.Element):
    """bf16 or f16"""


@tl.kernel
def experts_add_scaled_int4(
    x: tl.In[E, T, C, K],
    experts: tl.In[tl.i32, T, C],
    weights: tl.In[tl.f32, T, C],
    w: tl.In[tl.u32, X, N, Literal["K // 8"]],
    w_scales: tl.In[F, X, Literal["K // 128"], N],
    w_zeros: tl.In[tl.u8, X, Literal["K // 128"], N],
    residual: tl.InOut[E, T, N],
    weight: tl.In[E, N],
    scaled: tl.Out[E, T, N],
    squares: tl.Out[tl.f32, T, P],
    *,
    E: tl.Const,
    F: tl.Const,
    K: tl.Const,
    C: tl.Const,
    GROUP: tl.Const,
    ROWS: tl.Const,
    SPLIT: tl.Const,
):
    """`experts_add_scaled` with the weights of `int4_groups`; ROWS outputs of one token per block, SPLIT groups of weights at a
    time. A sum of squares is of GROUP outputs."""
    assert ROWS % GROUP == 0
    tl.grid(T, N // ROWS)
    tl.requires(K % (SPLIT * COLUMNS) == 0 and N % ROWS == 0 and P * GROUP == N)
    tl.values(experts, 0, X)
    tl.resident(w, w_scales, w_zeros, weight)
    t, n = tl.bid(0), tl.bid(1)
    g = tl.load(weight, n, shape=ROWS).astype(tl.f32)
    old = tl.load(residual, (t, n), shape=(1, ROWS)).astype(tl.f32)
    sums = weighted_sums_int4(x, experts, weights, w, w_scales, w_zeros, t, n, K, C, ROWS, SPLIT, E)
    total = tl.astype(sums + old, E)
    tl.store(residual, (t, n), total)
    v = total.astype(tl.f32)
    tl.store(scaled, (t, n), tl.astype(v * g[None, :], E))
    tl.store(squares, (t, n), tl.sum((v * v).reshape((1, ROWS // GROUP, GROUP)), axis=2))
