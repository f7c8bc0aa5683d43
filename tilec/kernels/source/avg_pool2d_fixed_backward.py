"""Gradient of the means of windows that are constants."""

from pool_parts import MOST, OH, OW, E, M, W
from pool_windows import HS, STRIDE, put, windows

import tilec as tl


@tl.kernel
def avg_pool2d_fixed_backward(
    dout: tl.In[E, M, OH, OW],
    dx: tl.Out[E, M, HS, STRIDE, W],
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
    """`avg_pool2d_backward` of constant numbers. A block computes `STRIDE * BH` x
    `STRIDE * BW` gradients."""
    tl.requires(window == WINDOW and stride == STRIDE and padding == PADDING)
    tl.requires(HS <= MOST and W <= MOST and OH <= MOST and OW <= MOST)
    tl.requires((HS * STRIDE + 2 * PADDING - WINDOW) // STRIDE + 1 == OH and (W + 2 * PADDING - WINDOW) // STRIDE + 1 == OW)
    tl.requires(W % 8 == 0 and OW % 8 == 0)
    across = tl.cdiv(W, STRIDE * BW)
    tiles = tl.cdiv(HS, BH) * across
    tl.grid(M * tiles)
    plane, i, j = tl.bid(0) // tiles, tl.bid(0) % tiles // across, tl.bid(0) % tiles % across
    for a in tl.static_range(STRIDE):
        columns = ()
        for b in tl.static_range(STRIDE):
            total = tl.zeros((BH, BW), tl.f32)
            for r in tl.static_range(WINDOW):
                for c in tl.static_range(WINDOW):
                    if (a + PADDING - r) % STRIDE == 0 and (b + PADDING - c) % STRIDE == 0:
                        total = total + windows(
                            dout, plane, i * BH, j * BW, (a + PADDING - r) // STRIDE, (b + PADDING - c) // STRIDE, BH, BW, 0
                        ).astype(tl.f32)
            columns = (*columns, (total * (1.0 / (WINDOW * WINDOW))).astype(E))
        put(dx, columns, plane, i, a, j, BH, BW, STRIDE)
