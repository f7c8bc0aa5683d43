"""Gradient of the largest elements of windows."""

from pool_parts import MOST, OH, OW, E, H, M, W, as_rows, rows_and_columns

import tilec as tl


@tl.kernel
def max_pool2d_backward(
    dout: tl.In[E, M, OH, OW],
    positions: tl.In[tl.i32, M, OH, OW],
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
    """`dx[m, h, w]` is the sum of `dout` of the windows whose largest element is there, in f32 and in a fixed order, rounded
    once. A block computes BH x BW gradients; only `cdiv(window, stride)` windows a side reach
    one."""
    tl.requires(H <= MOST and W <= MOST)
    tl.requires(window >= 1 and window <= MOST and stride >= 1 and stride <= MOST and padding >= 0 and 2 * padding <= window)
    tl.requires((H + 2 * padding - window) // stride + 1 == OH and (W + 2 * padding - window) // stride + 1 == OW)
    tl.requires(W % MULTIPLE == 0)
    across = tl.cdiv(W, BW)
    tl.grid(M, tl.cdiv(H, BH) * across)
    plane, i, j = tl.bid(0), tl.bid(1) // across, tl.bid(1) % across
    h, w = rows_and_columns(i, j, BH, BW)
    last_row, last_column = (h + padding) // stride, (w + padding) // stride
    total = tl.zeros((BW, BH), tl.f32)
    for r in range(tl.cdiv(window, stride)):
        for c in range(tl.cdiv(window, stride)):
            output = plane, last_row - r, last_column - c
            is_here = tl.gather(positions, output, pad=-1) == h * W + w
            total = total + tl.where(is_here, tl.gather(dout, output, pad=0).astype(tl.f32), 0)
    tl.store(dx, (plane, i, j), as_rows(total.astype(E)), mask=True)
