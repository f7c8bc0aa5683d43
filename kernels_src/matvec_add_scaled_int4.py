"""Linear layer at decode with the residual added, the next norm begun and INT4 weights (Zhang and Sennrich, 2019)."""

from typing import Literal

import tilec as tl

from .dims import E, K, N
from .int4_groups import GROUP, WORDS, each_row, group_inputs, group_sums, row_sums


class P(tl.Dim):
    """groups of four outputs"""


class F(tl.Element):
    """bf16 or f16"""


@tl.kernel
def matvec_add_scaled_int4(
    x: tl.In[E, Literal[1], K],
    w: tl.In[tl.u32, N, Literal["K // 8"]],
    w_scales: tl.In[F, Literal["K // 128"], N],
    w_zeros: tl.In[tl.u8, Literal["K // 128"], N],
    residual: tl.InOut[E, Literal[1], N],
    weight: tl.In[E, N],
    scaled: tl.Out[E, Literal[1], N],
    squares: tl.Out[tl.f32, Literal[1], P],
    *,
    E: tl.Const,
    F: tl.Const,
    K: tl.Const,
    ROWS: tl.Const,
    SPLIT: tl.Const,
):
    """`matvec_add_scaled` with the weights of `int4_groups`; ROWS outputs per block, SPLIT groups at a time. A sum of squares
    is of four outputs, as `scaled_matvec` takes them."""
    tl.grid(N // ROWS)
    tl.requires(K % (SPLIT * GROUP) == 0 and N % ROWS == 0 and ROWS % 4 == 0 and P * 4 == N)
    tl.resident(w, w_scales, w_zeros, weight)
    n = tl.bid(0)
    g = tl.load(weight, n, shape=ROWS).astype(tl.f32)[:, None]
    old = tl.load(residual, (0, n), shape=(1, ROWS)).astype(tl.f32).reshape((ROWS, 1))
    acc = tl.zeros((SPLIT, ROWS, 8), tl.f32)
    for k in range(K // (SPLIT * GROUP)):
        s, z = tl.load(w_scales, (k, n), shape=(SPLIT, ROWS)), tl.load(w_zeros, (k, n), shape=(SPLIT, ROWS))
        a = group_inputs(tl.load(x, (0, k), shape=(1, SPLIT * GROUP)), SPLIT)
        acc += group_sums(a, tl.load(w, (n, k), shape=(ROWS, SPLIT * WORDS)), s, z, SPLIT, ROWS, E)
    total = tl.astype(row_sums(acc, E) + old, E)
    tl.store(residual, (0, n), each_row(total))
    v = total.astype(tl.f32)
    tl.store(scaled, (0, n), each_row(tl.astype(v * g, E)))
    tl.store(squares, (0, n), tl.sum(each_row(v * v).reshape((1, ROWS // 4, 4)), axis=2))
