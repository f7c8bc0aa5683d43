"""The mean of each window of a plane."""

from pool_parts import MOST, OH, OW, E, H, M, W, as_rows, rows_and_columns

import tilec as tl


@tl.kernel
def avg_pool2d(
    x: tl.In[E, M, H, W],
    out: tl.Out[E, M, OH, OW],
    window: tl.i32,
    stride: tl.i32,
    padding: tl.i32,
    *,
    E: tl.Const,
    BH: tl.Const,
    BW: tl.Const,
    MULTIPLE: tl.Const,
):
    """`out[m, i, j]` is the mean of the `window * window` elements `x[m, h, w]` with `i * stride - padding <= h < i * stride -
    padding + window`, and w so of j, where those outside are 0; in f32, rounded once. A block computes BH x BW outputs."""
    tl.requires(H <= MOST and W <= MOST and OH <= MOST and OW <= MOST)
    tl.requires(window >= 1 and window <= MOST and stride >= 1 and stride <= MOST and padding >= 0 and 2 * padding <= window)
    tl.requires((H + 2 * padding - window) // stride + 1 == OH and (W + 2 * padding - window) // stride + 1 == OW)
    tl.requires(OW % MULTIPLE == 0)
    across = tl.cdiv(OW, BW)
    tl.grid(M, tl.cdiv(OH, BH) * across)
    plane, i, j = tl.bid(0), tl.bid(1) // across, tl.bid(1) % across
    h, w = rows_and_columns(i, j, BH, BW)
    top, left = h * stride - padding, w * stride - padding
    total = tl.zeros((BW, BH), tl.f32)
    for r in range(window):
        for c in range(window):
            total = total + tl.gather(x, (plane, top + r, left + c), pad=0).astype(tl.f32)
    share = 1.0 / (tl.f32(window) * tl.f32(window))
    tl.store(out, (plane, i, j), as_rows((total * share).astype(E)), mask=True)
