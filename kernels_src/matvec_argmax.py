"""The LM head of greedy decoding: the largest logit of each part of the vocabulary, and where it is, without the logits."""

import tilec as tl

from .dims import B, E, K, P, V


@tl.kernel
def matvec_argmax(
    x: tl.In[E, B, K],
    w: tl.In[E, V, K],
    maxima: tl.Out[tl.f32, B, P],
    indices: tl.Out[tl.i32, B, P],
    *,
    E: tl.Const,
    B: tl.Const,
    K: tl.Const,
    ROWS: tl.Const,
    BLOCK: tl.Const,
):
    """Of the logits `x @ w.T`, rounded to E, part p has every P-th group of ROWS columns; the lowest column among equals.

    A part without columns gives -inf. `argmax_reduce` finds the row's maximum among the parts. No NaN in the logits.
    """
    tl.grid(P)
    tl.requires(K % BLOCK == 0 and P <= 65536 and V <= 1073741824)
    part = tl.bid(0)
    if B == 1:
        best = tl.full((1,), -tl.inf, tl.f32)
        place = tl.full((1,), 2147483647, tl.i32)
        for n in range(part, tl.cdiv(V, ROWS), P):
            acc = tl.zeros((1, ROWS, BLOCK), tl.f32)
            for k in range(K // BLOCK):
                a = tl.load(x, (0, k), shape=(1, BLOCK)).astype(tl.f32)
                b = tl.load(w, (n, k), shape=(ROWS, BLOCK), pad=0).astype(tl.f32)
                acc += a[:, None, :] * b[None, :, :]
            logits = tl.where(
                (n * ROWS + tl.arange(ROWS))[None, :] < V, tl.astype(tl.sum(acc, axis=2), E).astype(tl.f32), -tl.inf
            )
            top, column = tl.max(logits, axis=1), tl.argmax(logits, axis=1) + n * ROWS
            place = tl.where(top > best, column, place)
            best = tl.where(top > best, top, best)
        tl.store(maxima, (0, part), tl.reshape(best, (1, 1)))
        tl.store(indices, (0, part), tl.reshape(place, (1, 1)))
    else:
        best = tl.full((8,), -tl.inf, tl.f32)
        place = tl.full((8,), 2147483647, tl.i32)
        for n in range(part, tl.cdiv(V, ROWS), P):
            acc = tl.zeros((ROWS, 8), tl.f32)
            for k in range(K // BLOCK):
                a = tl.load(w, (n, k), shape=(ROWS, BLOCK), pad=0)
                b = tl.load(x, (0, k), shape=(8, BLOCK), pad=0)
                acc = tl.mma(a, b.T, acc)
            logits = tl.where((n * ROWS + tl.arange(ROWS))[:, None] < V, tl.astype(acc, E).astype(tl.f32), -tl.inf)
            top, column = tl.max(logits, axis=0), tl.argmax(logits, axis=0) + n * ROWS
            place = tl.where(top > best, column, place)
            best = tl.where(top > best, top, best)
        tl.store(maxima, (0, part), tl.reshape(best, (8, 1)), mask=True)
        tl.store(indices, (0, part), tl.reshape(place, (8, 1)), mask=True)
