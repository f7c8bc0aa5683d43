"""Linear layer at decode after a norm that `matvec_add_scaled_fp8` has begun, with FP8 weights (Zhang and Sennrich, 2019)."""

from typing import Literal

import tilec as tl

from .dims import E, K, N
from .fp8_blocks import RUN, SQUARE, scaled_sums


@tl.kernel
def scaled_matvec_fp8(
    x: tl.In[E, Literal[1], K],
    squares: tl.In[tl.f32, Literal[1], Literal["K // 4"]],
    w: tl.In[tl.f8e4m3, N, K],
    w_scales: tl.In[tl.f32, Literal["N // 128"], Literal["K // 128"]],
    out: tl.Out[E, Literal[1], N],
    eps: tl.f32,
    *,
    E: tl.Const,
    K: tl.Const,
    ROWS: tl.Const,
    BLOCK: tl.Const,
    PARTS: tl.Const,
):
    """`scaled_matvec` with the weights `w[n, k] * w_scales[n // 128, k // 128]`, in f32, rounded once.
    ROWS outputs per block, PARTS times BLOCK columns in an iteration."""
    assert SQUARE % ROWS == 0
    tl.grid(N // ROWS)
    tl.requires(K % (PARTS * BLOCK) == 0 and BLOCK % SQUARE == 0 and N % SQUARE == 0)
    tl.resident(w, w_scales)
    n = tl.bid(0)
    total = tl.sum(tl.load(squares, (0, 0), shape=(1, K // 4)), axis=1)
    scale = tl.rsqrt(total * (1.0 / K) + eps, fast=True)
    acc = tl.zeros((ROWS, BLOCK // SQUARE, SQUARE // RUN), tl.f32)
    for step in range(K // (PARTS * BLOCK)):
        for part in tl.static_range(PARTS):
            k = step * PARTS + part
            s = tl.load(w_scales, (n // (SQUARE // ROWS), k), shape=(1, BLOCK // SQUARE))
            a = tl.load(x, (0, k), shape=(1, BLOCK))
            acc += scaled_sums(a, tl.load(w, (n, k), shape=(ROWS, BLOCK)), s, ROWS, BLOCK)
    tl.store(out, (0, n), tl.astype((tl.sum(acc, axis=(1, 2)) * scale)[None, :], E))
