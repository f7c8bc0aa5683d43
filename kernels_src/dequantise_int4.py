"""Weights of 16 bits from INT4 weights, their scales and zero points, for products that take nothing else."""

from typing import Literal

import tilec as tl

from .dims import E, K, N
from .int4_groups import GROUP, WORDS


class F(tl.Element):
    """bf16 or f16"""


@tl.kernel
def dequantise_int4(
    w: tl.In[tl.u32, N, Literal["K // 8"]],
    w_scales: tl.In[F, Literal["K // 128"], N],
    w_zeros: tl.In[tl.u8, Literal["K // 128"], N],
    out: tl.Out[E, N, K],
    *,
    E: tl.Const,
    F: tl.Const,
    ROWS: tl.Const,
):
    """`out` has the weights of `int4_groups`, the f32 product rounded once; ROWS rows of a group per block.

    The product is exact in f32 if its scale is bf16 or f16.
    """
    tl.grid(K // GROUP, N // ROWS)
    tl.requires(K % GROUP == 0 and N % ROWS == 0)
    k, n = tl.bid(0), tl.bid(1)
    words = tl.load(w, (n, k), shape=(ROWS, WORDS))
    q = tl.broadcast_to(words[:, :, None], (ROWS, WORDS, 8)) >> (4 * tl.arange(8)).astype(tl.u32)[None, None, :] & 15
    z = tl.load(w_zeros, (k, n), shape=(1, ROWS)).astype(tl.i32).reshape((ROWS, 1, 1))
    s = tl.load(w_scales, (k, n), shape=(1, ROWS)).astype(tl.f32).reshape((ROWS, 1, 1))
    tl.store(out, (n, k), tl.astype((q.astype(tl.i32) - z).astype(tl.f32) * s, E).reshape((ROWS, GROUP)))
