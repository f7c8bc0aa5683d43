"""Gradient of the means of windows."""

from pool_parts import MOST, OH, OW, E, H, M, W, as_rows, rows_and_columns

import tilec as tl


@tl.kernel
def avg_pool2d_backward(
    dout: tl.In[E, M, OH, OW],
    dx: tl.Out[E, M, H, W],
    window: tl.i32,
    stride: tl.i32,
    padding: tl.i32,
    *,
    E: tl.Const,
    BH: tl.Const,
    BW: tl.Const,
    MULTIPLE: tl.Const,
):
    """`dx[m, h, w]` is the sum of `dout` of the windows that have the element, over `window * window`; in f32 and in a fixed
    order, rounded once. A block computes BH x BW gradients."""
    tl.requires(H <= MOST and W <= MOST)
    tl.requires(window >= 1 and window <= MOST and stride >= 1 and stride <= MOST and padding >= 0 and 2 * padding <= window)
    tl.requires((H + 2 * padding - window) // stride + 1 == OH and (W + 2 * padding - window) // stride + 1 == OW)
    tl.requires(W % MULTIPLE == 0)
    across = tl.cdiv(W, BW)
    tl.grid(M, tl.cdiv(H, BH) * across)
    plane, i, j = tl.bid(0), tl.bid(1) // across, tl.bid(1) % across
    row, column = rows_and_columns(i, j, BH, BW)
    h, w = row + padding, column + padding
    total = tl.zeros((BW, BH), tl.f32)
    for r in range(tl.cdiv(window, stride)):
        for c in range(tl.cdiv(window, stride)):
            output = plane, h // stride - r, w // stride - c
            has = (h % stride + r * stride < window) & (w % stride + c * stride < window)
            total = total + tl.where(has, tl.gather(dout, output, pad=0).astype(tl.f32), 0)
    share = 1.0 / (tl.f32(window) * tl.f32(window))
    tl.store(dx, (plane, i, j), as_rows((total * share).astype(E)), mask=True)
