"""The LM head of greedy decoding: the largest logit of each part of the vocabulary, and where it is, without the logits."""

import tilec
from tilec import (
    Const,
    Dim,
    Element,
    In,
    Out,
    arange,
    argmax,
    astype,
    bid,
    cdiv,
    f32,
    full,
    grid,
    i32,
    inf,
    load,
    max,
    mma,
    requires,
    reshape,
    store,
    sum,
    where,
    zeros,
)


class E(Element):
    """bf16 or f16"""


class B(Dim):
    """rows of activations, 1 to 8"""


class V(Dim):
    """vocabulary size"""


class K(Dim):
    """inputs"""


class P(Dim):
    """parts of the vocabulary"""


@tilec.kernel
def matvec_argmax(
    x: In[E, B, K],
    w: In[E, V, K],
    maxima: Out[f32, B, P],
    indices: Out[i32, B, P],
    *,
    E: Const,
    B: Const,
    K: Const,
    ROWS: Const,
    BLOCK: Const,
):
    """Of the logits `x @ w.T`, rounded to E, part p has every P-th group of ROWS columns; the lowest column among equals.

    A part without columns gives -inf. `argmax_reduce` finds the row's maximum among the parts. No NaN in the logits.
    """
    grid(P)
    requires(K % BLOCK == 0 and P <= 65536 and V <= 1073741824)
    part = bid(0)
    if B == 1:
        best = full((1,), -inf, f32)
        place = full((1,), 2147483647, i32)
        for n in range(part, cdiv(V, ROWS), P):
            acc = zeros((1, ROWS, BLOCK), f32)
            for k in range(K // BLOCK):
                a = load(x, (0, k), shape=(1, BLOCK)).astype(f32)
                b = load(w, (n, k), shape=(ROWS, BLOCK), pad=0).astype(f32)
                acc += a[:, None, :] * b[None, :, :]
            logits = where((n * ROWS + arange(ROWS))[None, :] < V, astype(sum(acc, axis=2), E).astype(f32), -inf)
            top, column = max(logits, axis=1), argmax(logits, axis=1) + n * ROWS
            place = where(top > best, column, place)
            best = where(top > best, top, best)
        store(maxima, (0, part), reshape(best, (1, 1)))
        store(indices, (0, part), reshape(place, (1, 1)))
    else:
        best = full((8,), -inf, f32)
        place = full((8,), 2147483647, i32)
        for n in range(part, cdiv(V, ROWS), P):
            acc = zeros((ROWS, 8), f32)
            for k in range(K // BLOCK):
                a = load(w, (n, k), shape=(ROWS, BLOCK), pad=0)
                b = load(x, (0, k), shape=(8, BLOCK), pad=0)
                acc = mma(a, b.T, acc)
            logits = where((n * ROWS + arange(ROWS))[:, None] < V, astype(acc, E).astype(f32), -inf)
            top, column = max(logits, axis=0), argmax(logits, axis=0) + n * ROWS
            place = where(top > best, column, place)
            best = where(top > best, top, best)
        store(maxima, (0, part), reshape(best, (8, 1)), mask=True)
        store(indices, (0, part), reshape(place, (8, 1)), mask=True)
