"""Gradient of `grouped_matmul` with respect to its matrices."""

from typing import Literal

from grouped_parts import LIMIT, TILE, E, K, N, S, T, X

import tilec as tl


@tl.kernel
def grouped_matmul_backward_weights(
    tiles: tl.In[E, S, N, Literal["TILE"]],
    x: tl.In[E, T, K],
    starts: tl.In[tl.i32, S],
    before: tl.In[tl.i32, Literal["X + 2"]],
    dweights: tl.Out[E, X, N, K],
    *,
    E: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
    BK: tl.Const,
):
    """`dweights[g]` is the sum over rows t of group g of the outer products of `dout[t]` and `x[t]`, in f32, rounded once;
    `tiles` is `dout` by `grouped_columns`, `starts` and `before` are of `group_blocks` and `group_starts`.

    A block goes through its group's rows, BK at a time. Those of the next group in the last step are multiplied by 0, so they
    must be finite. Numbers that are loaded are not trusted: they are clamped to the tensors.
    """
    assert TILE % BK == 0
    tl.requires(K % 8 == 0, N % 8 == 0, T <= LIMIT, X <= 65536, S <= LIMIT)
    across, down = tl.cdiv(K, BN), tl.cdiv(N, BM)
    tl.grid(X * down * across)
    tl.requires(X * down * across <= 2147483647)
    t = tl.bid(0)
    g, n, k = t // across // down, t // across % down, t % across
    first = min(max(tl.load(before, g), 0), S - 1)
    after = min(max(tl.load(before, g + 1), 0), S - 1)
    begin = min(max(tl.load(starts, first), 0), T)
    end = min(max(tl.load(starts, after), 0), T)
    acc = tl.zeros((BM, BN), tl.f32)
    for j in range(tl.cdiv(max(end - begin, 0), BK)):
        a = tl.reshape(
            tl.load(tiles, offset=(first + j // (TILE // BK), n * BM, j % (TILE // BK) * BK), shape=(1, BM, BK), pad=0),
            (BM, BK),
        )
        b = tl.load(x, offset=(begin + j * BK, k * BN), shape=(BK, BN), pad=0)
        acc = tl.mma(a, b, acc)
    tl.store(dweights, (g, n, k), acc.astype(E)[None, :, :], mask=True)
