"""The mean of each window of a plane, for windows that are constants."""

from pool_parts import MOST, OH, OW, E, M, W
from pool_windows import HS, STRIDE, every

import tilec as tl


@tl.kernel
def avg_pool2d_fixed(
    x: tl.In[E, M, HS, STRIDE, W],
    out: tl.Out[E, M, OH, OW],
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
    """`avg_pool2d` of constant numbers. A block computes BH x BW outputs."""
    tl.requires(window == WINDOW and stride == STRIDE and padding == PADDING)
    tl.requires(HS <= MOST and W <= MOST and OH <= MOST and OW <= MOST)
    tl.requires((HS * STRIDE + 2 * PADDING - WINDOW) // STRIDE + 1 == OH and (W + 2 * PADDING - WINDOW) // STRIDE + 1 == OW)
    tl.requires(W % 8 == 0 and OW % 8 == 0)
    across = tl.cdiv(OW, BW)
    tiles = tl.cdiv(OH, BH) * across
    tl.grid(M * tiles)
    plane, i, j = tl.bid(0) // tiles, tl.bid(0) % tiles // across, tl.bid(0) % tiles % across
    total = tl.zeros((BH, BW), tl.f32)
    for r in tl.static_range(WINDOW):
        for c in tl.static_range(WINDOW):
            v = every(x, plane, i * BH, j * BW, r - PADDING, c - PADDING, BH, BW, STRIDE, 0)
            total = total + v.astype(tl.f32)
    tl.store(out, (plane, i, j), (total * (1.0 / (WINDOW * WINDOW))).astype(E)[None, :, :], mask=True)
