"""The LM head of greedy decoding for the tokens of several sequences, after a norm that has begun: `matvec_argmax` of rows."""

from typing import Literal

import tilec as tl

from .dims import B, E, K, P, V
from .eight_rows import each_once, rows_in_parts, weights_in_parts


@tl.kernel
def scaled_matvec_argmax_rows(
    x: tl.In[E, B, K],
    squares: tl.In[tl.f32, B, Literal["K // 16"]],
    w: tl.In[E, V, K],
    maxima: tl.Out[tl.f32, B, P],
    indices: tl.Out[tl.i32, B, P],
    eps: tl.f32,
    *,
    E: tl.Const,
    B: tl.Const,
    K: tl.Const,
    ROWS: tl.Const,
    SPLIT: tl.Const,
    BLOCK: tl.Const,
):
    """Of the logits that `scaled_matvec_rows` makes, part p has every P-th group of ROWS columns; the lowest among equals.

    A part without columns gives -inf. `argmax_reduce` finds a row's maximum among the parts. No NaN in the logits.
    """
    tl.grid(P)
    tl.requires(8 % B == 0 and K % (SPLIT * BLOCK) == 0 and V % ROWS == 0 and P <= 65536 and V <= 1073741824)
    tl.resident(w)
    part = tl.bid(0)
    total = tl.sum(tl.load(squares, (0, 0), shape=(B, K // 16)), axis=1)
    scale = tl.rsqrt(total * (1.0 / K) + eps, fast=True)
    best = tl.full((ROWS, B), -tl.inf, tl.f32)
    place = tl.full((ROWS, B), 2147483647, tl.i32)
    for n in range(part, V // ROWS, P):
        acc = tl.zeros((SPLIT, ROWS, 8), tl.f32)
        for k in range(K // (SPLIT * BLOCK)):
            a = weights_in_parts(tl.load(w, (n, k), shape=(ROWS, SPLIT * BLOCK)), ROWS, SPLIT, BLOCK)
            b = rows_in_parts(tl.load(x, (0, k), shape=(B, SPLIT * BLOCK)), B, SPLIT, BLOCK)
            acc = tl.mma(a, b, acc)
        logits = tl.astype(each_once(tl.sum(acc, axis=0), ROWS, B) * scale[None, :], E).astype(tl.f32)
        column = (n * ROWS + tl.arange(ROWS))[:, None]
        place = tl.where(logits > best, column, place)
        best = tl.where(logits > best, logits, best)
    top = tl.max(best, axis=0)
    tl.store(maxima, (0, part), tl.reshape(top, (B, 1)))
    tl.store(indices, (0, part), tl.reshape(tl.min(tl.where(best == top[None, :], place, 2147483647), axis=0), (B, 1)))
