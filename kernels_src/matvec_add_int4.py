"""Linear layer at decode with the residual added and INT4 weights: what ends attention and the feed-forward part."""

from typing import Literal

import tilec as tl

from .dims import B, E, K, N
from .int4_groups import GROUP, WORDS, each_row, group_inputs, group_sums, row_sums


class F(tl.Element):
    """bf16 or f16"""


@tl.kernel
def matvec_add_int4(
    x: tl.In[E, B, K],
    w: tl.In[tl.u32, N, Literal["K // 8"]],
    w_scales: tl.In[F, Literal["K // 128"], N],
    w_zeros: tl.In[tl.u8, Literal["K // 128"], N],
    residual: tl.InOut[E, B, N],
    *,
    E: tl.Const,
    F: tl.Const,
    B: tl.Const,
    K: tl.Const,
    ROWS: tl.Const,
    SPLIT: tl.Const,
):
    """`matvec_add` of one row with the weights of `int4_groups`, in f32, the sum rounded once; ROWS outputs per block, SPLIT
    groups at a time."""
    assert B == 1
    tl.grid(N // ROWS)
    tl.requires(K % (SPLIT * GROUP) == 0 and N % ROWS == 0)
    tl.resident(w, w_scales, w_zeros)
    n = tl.bid(0)
    old = tl.load(residual, (0, n), shape=(1, ROWS)).astype(tl.f32).reshape((ROWS, 1))
    acc = tl.zeros((SPLIT, ROWS, 8), tl.f32)
    for k in range(K // (SPLIT * GROUP)):
        s, z = tl.load(w_scales, (k, n), shape=(SPLIT, ROWS)), tl.load(w_zeros, (k, n), shape=(SPLIT, ROWS))
        a = group_inputs(tl.load(x, (0, k), shape=(1, SPLIT * GROUP)), SPLIT)
        acc += group_sums(a, tl.load(w, (n, k), shape=(ROWS, SPLIT * WORDS)), s, z, SPLIT, ROWS, E)
    tl.store(residual, (0, n), each_row(tl.astype(row_sums(acc, E) + old, E)))
