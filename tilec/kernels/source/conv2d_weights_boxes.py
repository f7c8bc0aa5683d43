"""Gradient of the weights of a convolution of planes as products of boxes of pixels, for each stripe of boxes."""
# Dims are classes to a type checker.
# pyright: reportUnnecessaryComparison=false

from conv_parts import MOST, B, C, D, E, H, O, P, R, S, T, W, X, shift, within

import tilec as tl


@tl.kernel
def conv2d_weights_boxes(
    transposed: tl.In[E, O, T],
    x: tl.In[E, B, H, D, W, X],
    dweight: tl.Out[tl.f32, P, O, R, S, C],
    height: tl.i32,
    width: tl.i32,
    channels: tl.i32,
    across: tl.i32,
    down: tl.i32,
    padding: tl.i32,
    *,
    E: tl.Const,
    BB: tl.Const,
    BH: tl.Const,
    BW: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
):
    """`dweight[p, o, r, s, c]` is the sum of `dout[b, i, j, o] * pixel(b, i * D + r - padding, j * D + s - padding, c)` over
    the positions of stripe p: boxes p, p + P and so on; in f32. `transposed` is of `conv2d_slopes`, with `across` boxes along
    columns and `down` along the axis of which a box has several; `x` is as for `conv2d_boxes`; `height`, `width` and
    `channels` are R, S and C. A block computes BM x BN weights of a tap."""
    tl.requires(C % 8 == 0 and X % 8 == 0 and X == D * C and (D == 1 or C % BN == 0) and T % (BB * BH * BW) == 0)
    tl.requires(height == R and width == S and channels == C and across >= 1 and down >= 1)
    tl.requires(C <= MOST and O <= MOST and R <= 1024 and S <= 1024 and D >= 1 and D <= 64 and P <= 65535)
    tl.requires(across <= MOST and down <= MOST and T <= 1073741824 and padding >= 0 and padding <= MOST)
    parts = tl.cdiv(C, BN)
    tl.grid(tl.cdiv(O, BM) * parts, R * S, P)
    m, n, p = tl.bid(0) // parts, tl.bid(0) % parts, tl.bid(2)
    r, s = tl.bid(1) // S, tl.bid(1) % S
    h, d = shift(within(r, 1024) - padding, D)
    w, e = shift(within(s, 1024) - padding, D)
    channel = e * C + within(n, MOST) * BN
    acc = tl.zeros((BM, BN), tl.f32)
    for k in range(p, tl.cdiv(T, BB * BH * BW), P):
        j, t = k % across, k // across
        z, y = t % down * (BB * BH), t // down
        at = (y if BB == 1 else z, (z if BB == 1 else y) + h, d, j * BW + w, channel)
        box = tl.load(x, offset=at, shape=(BB, BH, 1, BW, BN), pad=0).reshape((BB * BH * BW, BN))
        acc = tl.mma(tl.load(transposed, (m, k), shape=(BM, BB * BH * BW), pad=0), box, acc)
    tl.store(dweight, (p, m, r, s, n), acc.reshape((1, BM, 1, 1, BN)), mask=True)
