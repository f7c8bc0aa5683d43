"""Inverses of 4 by 4 matrices, by Gauss-Jordan with partial pivoting."""

import tilec as tl


class B(tl.Dim):
    """matrices"""


@tl.kernel
def inverse4(a: tl.In[tl.f32, B, 4, 4], out: tl.Out[tl.f32, B, 4, 4], *, BLOCK: tl.Const):
    tl.grid(tl.cdiv(B, BLOCK))
    i = tl.bid(0)
    rows = tl.arange(4)[None, :, None]
    columns = tl.arange(4)[None, None, :]
    left = tl.load(a, (i, 0, 0), shape=(BLOCK, 4, 4), pad=0)
    right = tl.broadcast_to(tl.where(rows == columns, 1.0, 0.0), (BLOCK, 4, 4))
    for k in range(4):
        column = tl.sum(tl.where(columns == k, left, 0), axis=2, keepdims=True)
        pivot = tl.argmax(tl.where(rows >= k, tl.abs(column), -1), axis=1)[:, :, None]
        chosen = rows == pivot
        best = tl.sum(tl.where(chosen, left, 0), axis=1, keepdims=True)
        best_right = tl.sum(tl.where(chosen, right, 0), axis=1, keepdims=True)
        old = tl.sum(tl.where(rows == k, left, 0), axis=1, keepdims=True)
        old_right = tl.sum(tl.where(rows == k, right, 0), axis=1, keepdims=True)
        left = tl.where(chosen, old, left)
        right = tl.where(chosen, old_right, right)
        value = tl.sum(tl.where(columns == k, best, 0), axis=2, keepdims=True)
        best = best / value
        best_right = best_right / value
        factor = tl.sum(tl.where(columns == k, left, 0), axis=2, keepdims=True)
        left = tl.where(rows == k, best, left - factor * best)
        right = tl.where(rows == k, best_right, right - factor * best_right)
    tl.store(out, (i, 0, 0), right, mask=True)
