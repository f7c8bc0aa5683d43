"""Convolutions of planes as products, and their gradient, of which neither copies the pixels of windows."""

from conv_parts import MOST, B, C, E, H, O, Q, R, S, W, pixels

import tilec as tl


@tl.kernel
def conv2d(
    x: tl.In[E, B, H, W, C],
    weight: tl.In[E, O, R, S, C],
    bias: tl.In[E, O],
    out: tl.Out[E, Q, O],
    rows: tl.i32,
    columns: tl.i32,
    down: tl.i32,
    up: tl.i32,
    direction: tl.i32,
    offset: tl.i32,
    *,
    E: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
    BK: tl.Const,
    MULTIPLE: tl.Const,
):
    """`out[(b * rows + i) * columns + j, o] = bias[o] + sum(weight[o, r, s] * x[b, h, w])`, over taps r and s and channels,
    with `h = (i * down + r * direction + offset) / up` where that is a row, and w so of j; in f32, rounded once.

    With up and direction 1 it is the convolution of stride `down` and padding `-offset`; with down 1, direction -1 and weights
    transposed, its gradient with respect to x. A block computes BM positions of BN channels."""
    tl.requires(C % MULTIPLE == 0 and O % MULTIPLE == 0)
    tl.requires(Q <= 1073741824 and C <= 1048576 and R <= MOST and S <= MOST)
    tl.requires(rows >= 1 and rows <= MOST and columns >= 1 and columns <= MOST)
    tl.requires(down >= 1 and down <= MOST and up >= 1 and up <= MOST)
    tl.requires(direction >= -1 and direction <= 1 and offset >= -MOST and offset <= MOST)
    tl.grid(tl.cdiv(Q, BM), tl.cdiv(O, BN))
    m, n = tl.bid(0), tl.bid(1)
    index = m * BM + tl.arange(BM)
    acc = tl.zeros((BM, BN), tl.f32)
    for r in range(R):
        for s in range(S):
            for k in range(tl.cdiv(C, BK)):
                a = pixels(x, index, rows, columns, r, s, k, down, up, direction, offset, BK)
                taps = tl.load(weight, (n, r, s, k), shape=(BN, 1, 1, BK), pad=0).reshape((BN, BK))
                acc = tl.mma(a, taps.T, acc)
    total = acc + tl.load(bias, n, shape=BN, pad=0).astype(tl.f32)[None, :]
    tl.store(out, (m, n), total.astype(E), mask=True)
