"""Activations to eight bits, with a scale for each row and each 128 columns (DeepSeek-AI, DeepSeek-V3, 2024, section 3.3)."""

from typing import Literal

import tilec as tl

from .dims import E, K, M

LARGEST = 448.0
"""The largest number of f8e4m3."""
FLOOR = 1e-10
"""Least maximum of a block, as in SGLang: a block of zeros has a scale, and no scale or quotient leaves the normal numbers."""


@tl.kernel
def quantise_rows(
    x: tl.In[E, M, K],
    codes: tl.Out[tl.f8e4m3, M, K],
    scales: tl.Out[tl.f32, Literal["K // 128"], M],
    *,
    E: tl.Const,
    ROWS: tl.Const,
):
    """`scales[b, m]` is `top / LARGEST` with `top = max(max(|x[m, b]|), FLOOR)` of block b of 128 columns, and `codes[m, k]` is
    `x[m, k] * (LARGEST / top)`. Quotients and product are rounded to f32, and the product to eight bits, to nearest even. A
    scale multiplies its codes, as `weight_scale_inv` of a checkpoint does.

    Engines differ: SGLang has this floor, DeepGEMM 1e-4; both multiply by an inverse, other references divide by the scale.

    A NaN counts for no maximum and has a code of NaN; a block with an infinity has a scale of infinity. So products of their
    rows are no finite numbers, and those of other rows do not change. The scales of a block of columns are adjacent, since a
    product reads those of many rows at once."""
    tl.requires(K % 128 == 0)
    tl.grid(tl.cdiv(M, ROWS), K // 128)
    m, b = tl.bid(0), tl.bid(1)
    v = tl.load(x, (m, b), shape=(ROWS, 128), pad=0).astype(tl.f32)
    top = tl.maximum(tl.max(tl.abs(v), axis=1), FLOOR)
    tl.store(codes, (m, b), (v * (LARGEST / top)[:, None]).astype(tl.f8e4m3), mask=True)
    tl.store(scales, (b, m), (top / LARGEST)[None, :], mask=True)
