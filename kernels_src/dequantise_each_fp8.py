"""Weights of 16 bits from the FP8 weights of each expert and their scales: `dequantise_fp8` of a stack."""

from typing import Literal

import tilec as tl

from .dims import E, K, N
from .experts_dims import X
from .fp8_blocks import SQUARE


@tl.kernel
def dequantise_each_fp8(
    w: tl.In[tl.f8e4m3, X, N, K],
    w_scales: tl.In[tl.f32, X, Literal["N // 128"], Literal["K // 128"]],
    out: tl.Out[E, X, N, K],
    *,
    E: tl.Const,
    ROWS: tl.Const,
):
    """`out[e]` is what `dequantise_fp8` makes of `w[e]` and `w_scales[e]`; ROWS rows of a block of weights per block."""
    assert SQUARE % ROWS == 0
    tl.grid(K // SQUARE, N // ROWS, X)
    tl.requires(K % SQUARE == 0 and N % SQUARE == 0)
    k, n, e = tl.bid(0), tl.bid(1), tl.bid(2)
    s = tl.load(w_scales, (e, n // (SQUARE // ROWS), k), shape=(1, 1, 1))
    tl.store(out, (e, n, k), tl.astype(tl.load(w, (e, n, k), shape=(1, ROWS, SQUARE)).astype(tl.f32) * s, E))
