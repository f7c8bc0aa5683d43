"""Down projections of the experts of each token, summed by their weights, with the residual added and FP8 weights (Shazeer et
al., Outrageously Large Neural Networks, 2017)."""

from typing import Literal

import tilec as tl

from .dims import E, K, N, T
from .experts_dims import C, X
from .experts_sums import weighted_sums_fp8
from .fp8_blocks import SQUARE


@tl.kernel
def experts_add_fp8(
    x: tl.In[E, T, C, K],
    experts: tl.In[tl.i32, T, C],
    weights: tl.In[tl.f32, T, C],
    w: tl.In[tl.f8e4m3, X, N, K],
    w_scales: tl.In[tl.f32, X, Literal["N // 128"], Literal["K // 128"]],
    residual: tl.InOut[E, T, N],
    *,
    E: tl.Const,
    K: tl.Const,
    C: tl.Const,
    ROWS: tl.Const,
    BLOCK: tl.Const,
):
    """`experts_add` with the weights `w[e, n, k] * w_scales[e, n // 128, k // 128]`. ROWS outputs of one token per block."""
    assert SQUARE % ROWS == 0
    tl.grid(T, N // ROWS)
    tl.requires(K % BLOCK == 0 and BLOCK % SQUARE == 0 and N % SQUARE == 0)
    tl.values(experts, 0, X)
    tl.resident(w, w_scales)
    t, n = tl.bid(0), tl.bid(1)
    old = tl.load(residual, (t, n), shape=(1, ROWS)).astype(tl.f32)
    sums = weighted_sums_fp8(x, experts, weights, w, w_scales, t, n, K, C, ROWS, BLOCK)
    tl.store(residual, (t, n), tl.astype(sums + old, E))
