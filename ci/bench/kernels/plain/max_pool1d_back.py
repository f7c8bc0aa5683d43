"""The gradient of max_pool1d: each gradient goes to where the largest element was."""

import tilec as tl


class R(tl.Dim):
    """rows"""


class N(tl.Dim):
    """elements of a row"""


class M(tl.Dim):
    """windows of a row"""


@tl.kernel
def max_pool1d_back(
    grad: tl.In[tl.f32, R, M],
    indices: tl.In[tl.i32, R, M],
    dx: tl.Atomic[tl.f32, R, N],
    *,
    BLOCK: tl.Const,
):
    tl.values(indices, 0, N)
    tl.grid(tl.cdiv(M, BLOCK), R)
    i, row = tl.bid(0), tl.bid(1)
    g = tl.load(grad, (row, i), shape=(1, BLOCK), pad=0)
    at = tl.load(indices, (row, i), shape=(1, BLOCK), pad=-1)
    tl.atomic_add(dx, g, at=(row, at), mask=True)
