"""Down projections of the experts of each token, with the residual added, the next norm begun and FP8 weights (Zhang and
Sennrich, 2019; Shazeer et al., Outrageously Large Neural Networks, 2017)."""

from typing import Literal

import tilec as tl

from .dims import E, K, N, T
from .experts_dims import C, X
from .experts_sums import weighted_sums_fp8
from .fp8_blocks import SQUARE


class P(tl.Dim):
    """groups of GROUP outputs"""


@tl.kernel
def experts_add_scaled_fp8(
    x: tl.In[E, T, C, K],
    experts: tl.In[tl.i32, T, C],
    weights: tl.In[tl.f32, T, C],
    w: tl.In[tl.f8e4m3, X, N, K],
    w_scales: tl.In[tl.f32, X, Literal["N // 128"], Literal["K // 128"]],
    residual: tl.InOut[E, T, N],
    weight: tl.In[E, N],
    scaled: tl.Out[E, T, N],
    squares: tl.Out[tl.f32, T, P],
    *,
    E: tl.Const,
    K: tl.Const,
    C: tl.Const,
    GROUP: tl.Const,
    ROWS: tl.Const,
    BLOCK: tl.Const,
):
    """`experts_add_scaled` with the weights `w[e, n, k] * w_scales[e, n // 128, k // 128]`. ROWS outputs of one token per
    block."""
    assert SQUARE % ROWS == 0 and ROWS % GROUP == 0
    tl.grid(T, N // ROWS)
    tl.requires(K % BLOCK == 0 and BLOCK % SQUARE == 0 and N % SQUARE == 0 and P * GROUP == N)
    tl.values(experts, 0, X)
    tl.resident(w, w_scales, weight)
    t, n = tl.bid(0), tl.bid(1)
    g = tl.load(weight, n, shape=ROWS).astype(tl.f32)
    old = tl.load(residual, (t, n), shape=(1, ROWS)).astype(tl.f32)
    sums = weighted_sums_fp8(x, experts, weights, w, w_scales, t, n, K, C, ROWS, BLOCK)
    total = tl.astype(sums + old, E)
    tl.store(residual, (t, n), total)
    v = total.astype(tl.f32)
    tl.store(scaled, (t, n), tl.astype(v * g[None, :], E))
    tl.store(squares, (t, n), tl.sum((v * v).reshape((1, ROWS // GROUP, GROUP)), axis=2))
