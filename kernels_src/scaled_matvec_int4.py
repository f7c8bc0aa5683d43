"""Linear layer at decode after a norm that `matvec_add_scaled_int4` has begun, with INT4 weights (Zhang and Sennrich, 2019)."""

from typing import Literal

import tilec as tl

from .dims import E, K, N
from .int4_groups import GROUP, WORDS, each_row, group_inputs, group_sums, row_sums


class F(tl.Element):
    """bf16 or f16"""


@tl.kernel
def scaled_matvec_int4(
    x: tl.In[E, Literal[1], K],
    squares: tl.In[tl.f32, Literal[1], Literal["K // 4"]],
    w: tl.In[tl.u32, N, Literal["K // 8"]],
    w_scales: tl.In[F, Literal["K // 128"], N],
    w_zeros: tl.In[tl.u8, Literal["K // 128"], N],
    out: tl.Out[E, Literal[1], N],
    eps: tl.f32,
    *,
    E: tl.Const,
    F: tl.Const,
    K: tl.Const,
    ROWS: tl.Const,
    SPLIT: tl.Const,
):
    """`scaled_matvec` with the weights of `int4_groups`, in f32, rounded once; ROWS outputs per block, SPLIT groups at a
    time."""
    tl.grid(N // ROWS)
    tl.requires(K % (SPLIT * GROUP) == 0 and N % ROWS == 0)
    tl.resident(w, w_scales, w_zeros)
    n = tl.bid(0)
    total = tl.sum(tl.load(squares, (0, 0), shape=(1, K // 4)))
    scale = tl.rsqrt(total * (1.0 / K) + eps, fast=True)
    acc = tl.zeros((SPLIT, ROWS, 8), tl.f32)
    for k in range(K // (SPLIT * GROUP)):
        s, z = tl.load(w_scales, (k, n), shape=(SPLIT, ROWS)), tl.load(w_zeros, (k, n), shape=(SPLIT, ROWS))
        a = group_inputs(tl.load(x, (0, k), shape=(1, SPLIT * GROUP)), SPLIT)
        acc += group_sums(a, tl.load(w, (n, k), shape=(ROWS, SPLIT * WORDS)), s, z, SPLIT, ROWS, E)
    tl.store(out, (0, n), tl.astype(each_row(row_sums(acc, E)) * scale, E))
