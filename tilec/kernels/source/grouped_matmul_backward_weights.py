"""Gradient of `grouped_matmul` with respect to its matrices."""

from typing import Literal

from grouped_parts import E, K, N, T, X

import tilec as tl


class TA(tl.Dim):
    """elements of a row of `transposed`, of which those past the last row of `x` are 0"""


@tl.function
def masked(left: tl.Tile, right: tl.Tile, row: tl.Tile, low: tl.Scalar, high: tl.Scalar, sums: tl.Tile) -> tl.Tile:
    """`sums + left @ right` over those of a chunk's rows that are from `low` up and below `high`."""
    mine = (row >= low) & (row < high)
    return tl.mma(tl.where(mine[None, :], left, 0.0), tl.where(mine[:, None], right, 0.0), sums)


@tl.kernel
def grouped_matmul_backward_weights(
    transposed: tl.In[E, N, TA],
    x: tl.In[E, T, K],
    offsets: tl.In[tl.i32, Literal["X + 1"]],
    dweights: tl.Out[E, X, N, K],
    *,
    E: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
    BK: tl.Const,
):
    """`dweights[g]` is the sum over rows t of group g of the outer products of `dout[t]` and `x[t]`, in f32, rounded once;
    `transposed` is `dout.T`.

    A block goes through the chunks of BK rows that lie in its group, and multiplies the rows at both of its ends by themselves.
    """
    tl.requires(TA % 8 == 0, K % 8 == 0, T <= TA, TA <= 1073741824, X <= 65535)
    tl.grid(tl.cdiv(K, BN), tl.cdiv(N, BM), X)
    k, n, g = tl.bid(0), tl.bid(1), tl.bid(2)
    begin = min(max(tl.load(offsets, g), 0), T)
    end = min(max(tl.load(offsets, g + 1), 0), T)
    first, last = tl.cdiv(begin, BK), end // BK
    acc = tl.zeros((BM, BN), tl.f32)
    for j in range(first, last):
        a = tl.load(transposed, (n, j), shape=(BM, BK), pad=0)
        b = tl.load(x, (j, k), shape=(BK, BN), pad=0)
        acc = tl.mma(a, b, acc)
    inside = first * BK
    for side in range(2):
        chunk = end // BK if side == 1 else begin // BK
        low, high = max(last * BK, inside) if side == 1 else begin, end if side == 1 else min(end, inside)
        if low < high:
            row = chunk * BK + tl.arange(BK)
            a = tl.load(transposed, (n, chunk), shape=(BM, BK), pad=0)
            b = tl.load(x, (chunk, k), shape=(BK, BN), pad=0)
            acc = masked(a, b, row, low, high, acc)
    tl.store(dweights, (g, n, k), acc.astype(E)[None, :, :], mask=True)
