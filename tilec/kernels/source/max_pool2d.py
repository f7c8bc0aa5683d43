"""The largest element of each window of a plane, and where it is."""

from pool_parts import MOST, OH, OW, E, H, M, W, as_rows, rows_and_columns

import tilec as tl


@tl.kernel
def max_pool2d(
    x: tl.In[E, M, H, W],
    out: tl.Out[E, M, OH, OW],
    positions: tl.Out[tl.i32, M, OH, OW],
    window: tl.i32,
    stride: tl.i32,
    padding: tl.i32,
    *,
    E: tl.Const,
    BH: tl.Const,
    BW: tl.Const,
    MULTIPLE: tl.Const,
):
    """`out[m, i, j]` is the largest `x[m, h, w]` with `i * stride - padding <= h < i * stride - padding + window`, and w so of
    j; `positions` are `h * W + w` of the first such element in the order of rows. NaN is above all. A block computes BH x BW
    outputs."""
    tl.requires(H <= MOST and W <= MOST and OH <= MOST and OW <= MOST)
    tl.requires(window >= 1 and window <= MOST and stride >= 1 and stride <= MOST and padding >= 0 and 2 * padding <= window)
    tl.requires((H + 2 * padding - window) // stride + 1 == OH and (W + 2 * padding - window) // stride + 1 == OW)
    tl.requires(OW % MULTIPLE == 0)
    across = tl.cdiv(OW, BW)
    tl.grid(M, tl.cdiv(OH, BH) * across)
    plane, i, j = tl.bid(0), tl.bid(1) // across, tl.bid(1) % across
    row, column = rows_and_columns(i, j, BH, BW)
    top, left = row * stride - padding, column * stride - padding
    best = tl.full((BW, BH), -tl.inf, tl.f32)
    at = tl.maximum(top, 0) * W + tl.maximum(left, 0)
    for r in range(window):
        for c in range(window):
            h, w = top + r, left + c
            v = tl.gather(x, (plane, h, w), pad=-tl.inf).astype(tl.f32)
            is_better = (v > best) | (v != v)
            best, at = tl.where(is_better, v, best), tl.where(is_better, h * W + w, at)
    tl.store(out, (plane, i, j), as_rows(best.astype(E)), mask=True)
    tl.store(positions, (plane, i, j), as_rows(at), mask=True)
