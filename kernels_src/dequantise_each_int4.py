"""Weights of 16 bits from the INT4 weights of each expert, their scales and zero points: `dequantise_int4` of a stack."""

from typing import Literal

import tilec as tl

from .dims import E, K, N
from .experts_dims import X
from .int4_groups import GROUP, WORDS


class F(tl.Element):
    """bf16 or f16"""


@tl.kernel
def dequantise_each_int4(
    w: tl.In[tl.u32, X, N, Literal["K // 8"]],
    w_scales: tl.In[F, X, Literal["K // 128"], N],
    w_zeros: tl.In[tl.u8, X, Literal["K // 128"], N],
    out: tl.Out[E, X, N, K],
    *,
    E: tl.Const,
    F: tl.Const,
    ROWS: tl.Const,
):
    """`out[e]` is what `dequantise_int4` makes of the tensors of expert e; ROWS rows of a group per block."""
    tl.grid(K // GROUP, N // ROWS, X)
    tl.requires(K % GROUP == 0 and N % ROWS == 0)
    k, n, e = tl.bid(0), tl.bid(1), tl.bid(2)
    words = tl.reshape(tl.load(w, (e, n, k), shape=(1, ROWS, WORDS)), (ROWS, WORDS))
    q = tl.broadcast_to(words[:, :, None], (ROWS, WORDS, 8)) >> (4 * tl.arange(8)).astype(tl.u32)[None, None, :] & 15
    z = tl.load(w_zeros, (e, k, n), shape=(1, 1, ROWS)).astype(tl.i32).reshape((ROWS, 1, 1))
    s = tl.load(w_scales, (e, k, n), shape=(1, 1, ROWS)).astype(tl.f32).reshape((ROWS, 1, 1))
    tl.store(out, (e, n, k), tl.astype((q.astype(tl.i32) - z).astype(tl.f32) * s, E).reshape((1, ROWS, GROUP)))
