"""`out = 2 * x`, of tensors with gaps between rows and columns."""

from typing import Literal

import tilec as tl


class M(tl.Dim):
    """rows"""


class N(tl.Dim):
    """columns"""


class XR(tl.Dim):
    """elements from one row of `x` to the next"""


class OR(tl.Dim):
    """elements from one row of `out` to the next"""


class OC(tl.Dim):
    """elements from one column of `out` to the next"""


@tl.kernel
def strided_scale(
    x: tl.In[tl.f32, M, N, tl.Strides[XR, Literal[1]]], out: tl.Out[tl.f32, M, N, tl.Strides[OR, OC]], *, BLOCK: tl.Const
):
    tl.grid(M, tl.cdiv(N, BLOCK))
    i, j = tl.bid(0), tl.bid(1)
    v = tl.load(x, (i, j), shape=(1, BLOCK), pad=0)
    tl.store(out, (i, j), 2.0 * v, mask=True)
