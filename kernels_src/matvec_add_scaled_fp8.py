"""Linear layer at decode with the residual added, the next norm begun and FP8 weights (Zhang and Sennrich, 2019)."""

from typing import Literal

import tilec as tl

from .dims import E, K, N
from .fp8_blocks import RUN, SQUARE, scaled_sums


class P(tl.Dim):
    """groups of ROWS outputs"""


@tl.kernel
def matvec_add_scaled_fp8(
    x: tl.In[E, Literal[1], K],
    w: tl.In[tl.f8e4m3, N, K],
    w_scales: tl.In[tl.f32, Literal["N // 128"], Literal["K // 128"]],
    residual: tl.InOut[E, Literal[1], N],
    weight: tl.In[E, N],
    scaled: tl.Out[E, Literal[1], N],
    squares: tl.Out[tl.f32, Literal[1], P],
    *,
    E: tl.Const,
    K: tl.Const,
    ROWS: tl.Const,
    BLOCK: tl.Const,
    PARTS: tl.Const,
):
    """`matvec_add_scaled` with the weights `w[n, k] * w_scales[n // 128, k // 128]`. ROWS outputs per block,
    PARTS times BLOCK columns in an iteration."""
    assert SQUARE % ROWS == 0
    tl.grid(P)
    tl.requires(K % (PARTS * BLOCK) == 0 and BLOCK % SQUARE == 0 and N % SQUARE == 0 and P * ROWS == N)
    tl.resident(w, w_scales, weight)
    n = tl.bid(0)
    g = tl.load(weight, n, shape=ROWS).astype(tl.f32)
    old = tl.load(residual, (0, n), shape=(1, ROWS)).astype(tl.f32)
    acc = tl.zeros((ROWS, BLOCK // SQUARE, SQUARE // RUN), tl.f32)
    for step in range(K // (PARTS * BLOCK)):
        for part in tl.static_range(PARTS):
            k = step * PARTS + part
            s = tl.load(w_scales, (n // (SQUARE // ROWS), k), shape=(1, BLOCK // SQUARE))
            a = tl.load(x, (0, k), shape=(1, BLOCK))
            acc += scaled_sums(a, tl.load(w, (n, k), shape=(ROWS, BLOCK)), s, ROWS, BLOCK)
    total = tl.astype(tl.sum(acc, axis=(1, 2))[None, :] + old, E)
    tl.store(residual, (0, n), total)
    v = total.astype(tl.f32)
    tl.store(scaled, (0, n), tl.astype(v * g[None, :], E))
    tl.store(squares, (0, n), tl.sum(v * v, axis=1)[:, None])
