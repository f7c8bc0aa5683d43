"""FP8 (e4m3) quantisation with a scale for each block of 128 x 128."""

from typing import Literal

import tilec as tl


class E(tl.Element):
    """bf16 or f16"""


class M(tl.Dim):
    """rows"""


class N(tl.Dim):
    """columns"""


@tl.kernel
def fp8_quant(
    x: tl.In[E, M, N],
    q: tl.Out[tl.f8e4m3, M, N],
    scales: tl.Out[tl.f32, Literal["(M + 127) // 128"], Literal["(N + 127) // 128"]],
    *,
    E: tl.Const,
):
    tl.grid(tl.cdiv(M, 128), tl.cdiv(N, 128))
    i, j = tl.bid(0), tl.bid(1)
    v = tl.load(x, (i, j), shape=(128, 128), pad=0).astype(tl.f32)
    scale = tl.maximum(tl.max(tl.abs(v)), 1e-12) / 448.0
    tl.store(scales, (i, j), scale)
    tl.store(q, (i, j), (v / scale).astype(tl.f8e4m3), mask=True)
