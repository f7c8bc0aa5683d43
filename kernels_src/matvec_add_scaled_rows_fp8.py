"""`matvec_add_scaled_fp8` of the tokens of several sequences: the weights are read once for all rows."""

from typing import Literal

import tilec as tl

from .dims import B, E, K, N
from .eight_rows import each_once
from .fp8_blocks import SQUARE
from .fp8_products import scaled_products


class P(tl.Dim):
    """groups of ROWS outputs"""


@tl.kernel
def matvec_add_scaled_rows_fp8(
    x: tl.In[E, B, K],
    w: tl.In[tl.f8e4m3, N, K],
    w_scales: tl.In[tl.f32, Literal["N // 128"], Literal["K // 128"]],
    residual: tl.InOut[E, B, N],
    weight: tl.In[E, N],
    scaled: tl.Out[E, B, N],
    squares: tl.Out[tl.f32, B, P],
    *,
    E: tl.Const,
    B: tl.Const,
    K: tl.Const,
    ROWS: tl.Const,
    SPLIT: tl.Const,
    BLOCK: tl.Const,
):
    """`matvec_add_scaled_rows` with the weights `w[n, k] * w_scales[n // 128, k // 128]`. SPLIT sums of 128 columns are side by
    side, as in `scaled_matvec_rows_fp8`."""
    assert SQUARE % ROWS == 0
    assert SQUARE % BLOCK == 0
    tl.grid(P)
    tl.requires(8 % B == 0 and K % (SPLIT * BLOCK) == 0 and SPLIT * BLOCK % SQUARE == 0 and N % SQUARE == 0 and P * ROWS == N)
    tl.resident(w, w_scales, weight)
    n = tl.bid(0)
    g = tl.load(weight, n, shape=ROWS).astype(tl.f32)
    old = tl.load(residual, (0, n), shape=(B, ROWS)).astype(tl.f32)
    acc = tl.zeros((SPLIT * BLOCK // SQUARE, SQUARE // BLOCK, ROWS, 8), tl.f32)
    for k in range(K // (SPLIT * BLOCK)):
        s = tl.load(w_scales, (n // (SQUARE // ROWS), k), shape=(1, SPLIT * BLOCK // SQUARE))
        y = tl.load(x, (0, k), shape=(B, SPLIT * BLOCK))
        acc += scaled_products(y, tl.load(w, (n, k), shape=(ROWS, SPLIT * BLOCK)), s, B, ROWS, SPLIT, BLOCK)
    total = tl.astype(each_once(tl.sum(acc, axis=(0, 1)), ROWS, B).T + old, E)
    tl.store(residual, (0, n), total)
    v = total.astype(tl.f32)
    tl.store(scaled, (0, n), tl.astype(v * g[None, :], E))
    tl.store(squares, (0, n), tl.sum(v * v, axis=1)[:, None])
