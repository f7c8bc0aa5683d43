"""Convolutions of planes as products of boxes of pixels, each of which is one copy by TMA."""
# Dims are classes to a type checker.
# pyright: reportUnnecessaryComparison=false

from conv_parts import HO, MOST, WO, B, C, D, E, H, O, R, S, W, X, shift, within

import tilec as tl


@tl.kernel
def conv2d_boxes(
    x: tl.In[E, B, H, D, W, X],
    weight: tl.In[E, O, R, S, C],
    bias: tl.In[E, O],
    out: tl.Out[E, B, HO, WO, O],
    rows: tl.i32,
    columns: tl.i32,
    direction: tl.i32,
    offset: tl.i32,
    *,
    E: tl.Const,
    BB: tl.Const,
    BH: tl.Const,
    BW: tl.Const,
    BN: tl.Const,
    BK: tl.Const,
):
    """`out[b, i, j, o] = bias[o] + sum(weight[o, r, s] * pixel(b, i * D + r * direction + offset, w))`, over taps r and s and
    channels, with w so of j and s; in f32, rounded once. Pixels that there are none of are 0.

    The rows and columns of a plane are split by D, so that positions side by side take pixels side by side:
    `x[b, h, d, w, e * C + c]` is channel c of pixel `(b, h * D + d, w * D + e)`. A block computes BB x BH x BW positions of BN
    channels; BB or BH is 1."""
    tl.requires(C % 8 == 0 and O % 8 == 0 and X % 8 == 0 and X == D * C and (D == 1 or C % BK == 0))
    tl.requires(B <= MOST and C <= MOST and O <= MOST and R <= 1024 and S <= 1024 and D >= 1 and D <= 64)
    tl.requires(HO <= MOST and WO <= MOST and H <= MOST and rows == HO and columns == WO)
    tl.requires(direction >= -1 and direction <= 1 and offset >= -MOST and offset <= MOST)
    across, down, parts = tl.cdiv(WO, BW), tl.cdiv(HO, BH), tl.cdiv(O, BN)
    tl.requires(parts * across * down * tl.cdiv(B, BB) <= 2147483647)
    tl.grid(parts * across * down * tl.cdiv(B, BB))
    t = tl.bid(0)
    n, t = t % parts, t // parts
    j, t = t % across, t // across
    i, b = t % down, t // down
    chunks = tl.cdiv(C, BK)
    acc = tl.zeros((BB * BH * BW, BN), tl.f32)
    for k in range(R * S * chunks):
        tap, c = k // chunks, k % chunks
        r, s = within(tap // S, 1024), within(tap % S, 1024)
        h, d = shift(r * direction + offset, D)
        w, e = shift(s * direction + offset, D)
        at = (b * BB, i * BH + h, d, within(j, MOST) * BW + w, e * C + c * BK)
        box = tl.load(x, offset=at, shape=(BB, BH, 1, BW, BK), pad=0)
        taps = tl.load(weight, (n, r, s, c), shape=(BN, 1, 1, BK), pad=0)
        acc = tl.mma(box.reshape((BB * BH * BW, BK)), taps.reshape((BN, BK)).T, acc)
    total = acc + tl.load(bias, n, shape=BN, pad=0).astype(tl.f32)[None, :]
    tl.store(out, (b, i, j, n), total.astype(E).reshape((BB, BH, BW, BN)), mask=True)
