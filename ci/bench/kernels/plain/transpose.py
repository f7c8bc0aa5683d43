"""`out[b] = x[b].T` of f16."""

import tilec as tl


class B(tl.Dim):
    """matrices"""


class H(tl.Dim):
    """rows"""


class W(tl.Dim):
    """columns"""


@tl.kernel
def transpose(x: tl.In[tl.f16, B, H, W], out: tl.Out[tl.f16, B, W, H], *, BLOCK: tl.Const):
    tl.grid(tl.cdiv(H, BLOCK), tl.cdiv(W, BLOCK), B)
    i, j, b = tl.bid(0), tl.bid(1), tl.bid(2)
    v = tl.load(x, (b, i, j), shape=(1, BLOCK, BLOCK), pad=0)
    tl.store(out, (b, j, i), tl.permute(v, (0, 2, 1)), mask=True)
