"""Linear layer at decode with the residual added and FP8 weights: the projections that end attention and the MLP."""

from typing import Literal

import tilec as tl

from .dims import B, E, K, N
from .fp8_blocks import RUN, SQUARE, scaled_sums


@tl.kernel
def matvec_add_fp8(
    x: tl.In[E, B, K],
    w: tl.In[tl.f8e4m3, N, K],
    w_scales: tl.In[tl.f32, Literal["N // 128"], Literal["K // 128"]],
    residual: tl.InOut[E, B, N],
    *,
    E: tl.Const,
    B: tl.Const,
    K: tl.Const,
    ROWS: tl.Const,
    BLOCK: tl.Const,
    PARTS: tl.Const,
):
    """`matvec_add` of one row with the weights `w[n, k] * w_scales[n // 128, k // 128]`, in f32, the sum rounded once.
    ROWS outputs per block, PARTS times BLOCK columns in an iteration."""
    assert B == 1
    assert SQUARE % ROWS == 0
    tl.grid(N // ROWS)
    tl.requires(K % (PARTS * BLOCK) == 0 and BLOCK % SQUARE == 0 and N % SQUARE == 0)
    tl.resident(w, w_scales)
    n = tl.bid(0)
    old = tl.load(residual, (0, n), shape=(1, ROWS)).astype(tl.f32)
    acc = tl.zeros((ROWS, BLOCK // SQUARE, SQUARE // RUN), tl.f32)
    for step in range(K // (PARTS * BLOCK)):
        for part in tl.static_range(PARTS):
            k = step * PARTS + part
            s = tl.load(w_scales, (n // (SQUARE // ROWS), k), shape=(1, BLOCK // SQUARE))
            a = tl.load(x, (0, k), shape=(1, BLOCK))
            acc += scaled_sums(a, tl.load(w, (n, k), shape=(ROWS, BLOCK)), s, ROWS, BLOCK)
    tl.store(residual, (0, n), tl.astype(tl.sum(acc, axis=(1, 2))[None, :] + old, E))
