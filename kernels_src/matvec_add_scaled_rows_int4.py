"""`matvec_add_scaled_int4` of the tokens of several sequences: the weights are read once for all rows."""

from typing import Literal

import tilec as tl

from .dims import B, E, K, N
from .eight_rows import each_once
from .int4_groups import GROUP, WORDS, group_rows, group_sums, row_sums


class P(tl.Dim):
    """groups of ROWS outputs"""


class F(tl.Element):
    """bf16 or f16"""


@tl.kernel
def matvec_add_scaled_rows_int4(
    x: tl.In[E, B, K],
    w: tl.In[tl.u32, N, Literal["K // 8"]],
    w_scales: tl.In[F, Literal["K // 128"], N],
    w_zeros: tl.In[tl.u8, Literal["K // 128"], N],
    residual: tl.InOut[E, B, N],
    weight: tl.In[E, N],
    scaled: tl.Out[E, B, N],
    squares: tl.Out[tl.f32, B, P],
    *,
    E: tl.Const,
    F: tl.Const,
    B: tl.Const,
    K: tl.Const,
    ROWS: tl.Const,
    SPLIT: tl.Const,
):
    """`matvec_add_scaled_rows` with the weights of `int4_groups`; ROWS outputs per block, SPLIT groups at a time."""
    tl.grid(P)
    tl.requires(8 % B == 0 and K % (SPLIT * GROUP) == 0 and P * ROWS == N)
    tl.resident(w, w_scales, w_zeros, weight)
    n = tl.bid(0)
    g = tl.load(weight, n, shape=ROWS).astype(tl.f32)
    old = tl.load(residual, (0, n), shape=(B, ROWS)).astype(tl.f32)
    acc = tl.zeros((SPLIT, ROWS, 8), tl.f32)
    for k in range(K // (SPLIT * GROUP)):
        s, z = tl.load(w_scales, (k, n), shape=(SPLIT, ROWS)), tl.load(w_zeros, (k, n), shape=(SPLIT, ROWS))
        a = group_rows(tl.load(x, (0, k), shape=(B, SPLIT * GROUP)), B, SPLIT)
        acc += group_sums(a, tl.load(w, (n, k), shape=(ROWS, SPLIT * WORDS)), s, z, SPLIT, ROWS, E)
    total = tl.astype(each_once(row_sums(acc, E), ROWS, B).T + old, E)
    tl.store(residual, (0, n), total)
    v = total.astype(tl.f32)
    tl.store(scaled, (0, n), tl.astype(v * g[None, :], E))
    tl.store(squares, (0, n), tl.sum(v * v, axis=1)[:, None])
