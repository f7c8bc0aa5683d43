"""The largest element of each window of a plane, and where it is, for windows that are constants."""

from pool_parts import MOST, OH, OW, E, M, W
from pool_windows import HS, STRIDE, every

import tilec as tl


@tl.kernel
def max_pool2d_fixed(
    x: tl.In[E, M, HS, STRIDE, W],
    out: tl.Out[E, M, OH, OW],
    taps: tl.Out[tl.u8, M, OH, OW],
    window: tl.i32,
    stride: tl.i32,
    padding: tl.i32,
    *,
    E: tl.Const,
    WINDOW: tl.Const,
    STRIDE: tl.Const,
    PADDING: tl.Const,
    BH: tl.Const,
    BW: tl.Const,
):
    """`max_pool2d` of constant numbers, windows of at most 15 a side; `taps` are `r * WINDOW + c` of the first of
    the largest elements of a window, where r and c count its rows and columns. A block computes BH x BW outputs."""
    tl.requires(window == WINDOW and stride == STRIDE and padding == PADDING)
    tl.requires(HS <= MOST and W <= MOST and OH <= MOST and OW <= MOST)
    tl.requires((HS * STRIDE + 2 * PADDING - WINDOW) // STRIDE + 1 == OH and (W + 2 * PADDING - WINDOW) // STRIDE + 1 == OW)
    tl.requires(W % 8 == 0 and OW % 8 == 0)
    across = tl.cdiv(OW, BW)
    tiles = tl.cdiv(OH, BH) * across
    tl.grid(M * tiles)
    plane, i, j = tl.bid(0) // tiles, tl.bid(0) % tiles // across, tl.bid(0) % tiles % across
    first_row = tl.maximum(PADDING - STRIDE * (i * BH + tl.arange(BH)), 0)
    first_column = tl.maximum(PADDING - STRIDE * (j * BW + tl.arange(BW)), 0)
    best = tl.full((BH, BW), -tl.inf, tl.f32)
    at = first_row[:, None] * WINDOW + first_column[None, :]
    for r in tl.static_range(WINDOW):
        for c in tl.static_range(WINDOW):
            v = every(x, plane, i * BH, j * BW, r - PADDING, c - PADDING, BH, BW, STRIDE, -tl.inf).astype(tl.f32)
            is_better = (v > best) | (v != v)
            best, at = tl.where(is_better, v, best), tl.where(is_better, r * WINDOW + c, at)
    tl.store(out, (plane, i, j), best.astype(E)[None, :, :], mask=True)
    tl.store(taps, (plane, i, j), at.astype(tl.u8)[None, :, :], mask=True)
