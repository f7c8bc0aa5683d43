"""Gradient of the weights of a convolution of planes, for each stripe of positions."""

from conv_parts import MOST, B, C, E, H, O, P, Q, R, S, W, pixels

import tilec as tl


@tl.kernel
def conv2d_weights(
    dout: tl.In[E, Q, O],
    x: tl.In[E, B, H, W, C],
    dweight: tl.Out[tl.f32, P, O, R, S, C],
    rows: tl.i32,
    columns: tl.i32,
    stride: tl.i32,
    padding: tl.i32,
    height: tl.i32,
    width: tl.i32,
    *,
    E: tl.Const,
    BM: tl.Const,
    BN: tl.Const,
    BK: tl.Const,
    MULTIPLE: tl.Const,
):
    """`dweight[p, o, r, s, c]` is the sum of `dout[q, o] * x[b, i * stride + r - padding, j * stride + s - padding, c]` over
    the positions `q = (b * rows + i) * columns + j` of stripe p: tiles p, p + P and so on of BK positions; in f32. `height` and
    `width` are R and S. A block computes BM x BN weights of a tap."""
    tl.requires(C % MULTIPLE == 0 and O % MULTIPLE == 0 and height == R and width == S)
    tl.requires(Q <= 1073741824 and C <= 1048576 and R <= 1024 and S <= 1024 and P <= 65535)
    tl.requires(rows >= 1 and rows <= MOST and columns >= 1 and columns <= MOST)
    tl.requires(stride >= 1 and stride <= MOST and padding >= 0 and padding <= MOST)
    across = tl.cdiv(C, BN)
    tl.grid(tl.cdiv(O, BM) * across, R * S, P)
    m, n, p = tl.bid(0) // across, tl.bid(0) % across, tl.bid(2)
    r, s = tl.bid(1) // S, tl.bid(1) % S
    acc = tl.zeros((BM, BN), tl.f32)
    for k in range(p, tl.cdiv(Q, BK), P):
        slopes = tl.load(dout, (k, m), shape=(BK, BM), pad=0)
        b = pixels(x, k * BK + tl.arange(BK), rows, columns, r, s, n, stride, 1, 1, 0 - padding, BN)
        acc = tl.mma(slopes.T, b, acc)
    tl.store(dweight, (p, m, r, s, n), acc.reshape((1, BM, 1, 1, BN)), mask=True)
