"""The LM head of greedy decoding for the tokens of several sequences, after a norm that has begun: `matvec_argmax` of rows."""

from typing import Literal

from eight_rows import each_once, rows_in_parts, weights_in_parts

import tilec
from tilec import (
    Const,
    Dim,
    Element,
    In,
    Out,
    arange,
    astype,
    bid,
    f32,
    full,
    grid,
    i32,
    inf,
    load,
    max,
    min,
    mma,
    requires,
    reshape,
    resident,
    rsqrt,
    store,
    sum,
    where,
    zeros,
)


class E(Element):
    """bf16 or f16"""


class B(Dim):
    """rows, one of each sequence: 2, 4 or 8"""


class V(Dim):
    """vocabulary size"""


class K(Dim):
    """inputs"""


class P(Dim):
    """parts of the vocabulary"""


@tilec.kernel
def scaled_matvec_argmax_rows(
    x: In[E, B, K],
    squares: In[f32, B, Literal["K // 16"]],
    w: In[E, V, K],
    maxima: Out[f32, B, P],
    indices: Out[i32, B, P],
    eps: f32,
    *,
    E: Const,
    B: Const,
    K: Const,
    ROWS: Const,
    SPLIT: Const,
    BLOCK: Const,
):
    """Of the logits that `scaled_matvec_rows` makes, part p has every P-th group of ROWS columns; the lowest among equals.

    A part without columns gives -inf. `argmax_reduce` finds a row's maximum among the parts. No NaN in the logits.
    """
    grid(P)
    requires(8 % B == 0 and K % (SPLIT * BLOCK) == 0 and V % ROWS == 0 and P <= 65536 and V <= 1073741824)
    resident(w)
    part = bid(0)
    total = sum(load(squares, (0, 0), shape=(B, K // 16)), axis=1)
    scale = rsqrt(total * (1.0 / K) + eps)
    best = full((ROWS, B), -inf, f32)
    place = full((ROWS, B), 2147483647, i32)
    for n in range(part, V // ROWS, P):
        acc = zeros((SPLIT, ROWS, 8), f32)
        for k in range(K // (SPLIT * BLOCK)):
            a = weights_in_parts(load(w, (n, k), shape=(ROWS, SPLIT * BLOCK)), ROWS, SPLIT, BLOCK)
            b = rows_in_parts(load(x, (0, k), shape=(B, SPLIT * BLOCK)), B, SPLIT, BLOCK)
            acc = mma(a, b, acc)
        logits = astype(each_once(sum(acc, axis=0), ROWS, B) * scale[None, :], E).astype(f32)
        column = (n * ROWS + arange(ROWS))[:, None]
        place = where(logits > best, column, place)
        best = where(logits > best, logits, best)
    top = max(best, axis=0)
    store(maxima, (0, part), reshape(top, (B, 1)))
    store(indices, (0, part), reshape(min(where(best == top[None, :], place, 2147483647), axis=0), (B, 1)))
