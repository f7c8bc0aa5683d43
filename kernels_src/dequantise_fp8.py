"""Weights of 16 bits from FP8 weights and their scales, for products that take nothing else."""

from typing import Literal

import tilec as tl

from .dims import E, K, N
from .fp8_blocks import SQUARE


@tl.kernel
def dequantise_fp8(
    w: tl.In[tl.f8e4m3, N, K],
    w_scales: tl.In[tl.f32, Literal["N // 128"], Literal["K // 128"]],
    out: tl.Out[E, N, K],
    *,
    E: tl.Const,
    ROWS: tl.Const,
):
    """`out[n, k] = w[n, k] * w_scales[n // 128, k // 128]`, the f32 product rounded once; ROWS rows of a block of weights per
    block."""
    assert SQUARE % ROWS == 0
    tl.grid(K // SQUARE, N // ROWS)
    tl.requires(K % SQUARE == 0 and N % SQUARE == 0)
    k, n = tl.bid(0), tl.bid(1)
    s = tl.load(w_scales, (n // (SQUARE // ROWS), k), shape=(1, 1))
    tl.store(out, (n, k), tl.astype(tl.load(w, (n, k), shape=(ROWS, SQUARE)).astype(tl.f32) * s, E))
