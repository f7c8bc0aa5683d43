"""Down projections of the experts of each token, summed by their weights, with FP8 weights (Shazeer et al., Outrageously Large
Neural Networks, 2017)."""

from typing import Literal

import tilec as tl

from .dims import E, K, N, T
from .experts_dims import C, X
from .fp8_blocks import RUN, SQUARE, scaled_sums


@tl.kernel
def experts_down_fp8(
    x: tl.In[E, T, C, K],
    experts: tl.In[tl.i32, T, C],
    weights: tl.In[tl.f32, T, C],
    w: tl.In[tl.f8e4m3, X, N, K],
    w_scales: tl.In[tl.f32, X, Literal["N // 128"], Literal["K // 128"]],
    out: tl.Out[E, T, N],
    *,
    E: tl.Const,
    K: tl.Const,
    C: tl.Const,
    ROWS: tl.Const,
    BLOCK: tl.Const,
):
    """`experts_down` with the weights `w[e, n, k] * w_scales[e, n // 128, k // 128]`. ROWS outputs of one token per block."""
    assert SQUARE % ROWS == 0
    tl.grid(T, N // ROWS)
    tl.requires(K % BLOCK == 0 and BLOCK % SQUARE == 0 and N % SQUARE == 0)
    tl.values(experts, 0, X)
    tl.resident(w, w_scales)
    t, n = tl.bid(0), tl.bid(1)
    acc = tl.zeros((ROWS, BLOCK // SQUARE, SQUARE // RUN), tl.f32)
    for c in tl.static_range(C):
        e, part = tl.load(experts, (t, c)), tl.load(weights, (t, c))
        for k in tl.static_range(K // BLOCK):
            s = tl.load(w_scales, (e, n // (SQUARE // ROWS), k), shape=(1, 1, BLOCK // SQUARE))
            a = tl.load(x, (t, c, k), shape=(1, 1, BLOCK)).reshape((1, BLOCK))
            b = tl.load(w, (e, n, k), shape=(1, ROWS, BLOCK)).reshape((ROWS, BLOCK))
            acc += scaled_sums(a, b, s.reshape((1, BLOCK // SQUARE)), ROWS, BLOCK) * part
    tl.store(out, (t, n), tl.astype(tl.sum(acc, axis=(1, 2))[None, :], E))
