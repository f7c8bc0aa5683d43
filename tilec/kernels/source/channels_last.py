"""Planes whose channels lie one after the other, as planes whose channels are the last axis."""

from conv_parts import B, C, E

import tilec as tl


class N(tl.Dim):
    """pixels of a plane"""


@tl.kernel
def channels_last(
    x: tl.In[E, B, C, N], out: tl.Out[E, B, N, C], *, E: tl.Const, BM: tl.Const, BN: tl.Const, MULTIPLE: tl.Const
):
    """`out[b, n, c] = x[b, c, n]`. A block moves BM channels of BN pixels; blocks that follow each other write whole pixels."""
    tl.requires(C % MULTIPLE == 0 and N % MULTIPLE == 0 and C <= 1073741824 and N <= 1073741824)
    parts, tiles = tl.cdiv(C, BM), tl.cdiv(N, BN)
    tl.grid(parts * tiles, B)
    tl.requires(parts * tiles <= 2147483647 and B <= 65535)
    i, j, b = tl.bid(0) % parts, tl.bid(0) // parts, tl.bid(1)
    tile = tl.load(x, (b, i, j), shape=(1, BM, BN), pad=0).reshape((BM, BN))
    tl.store(out, (b, j, i), tile.T.reshape((1, BN, BM)), mask=True)
