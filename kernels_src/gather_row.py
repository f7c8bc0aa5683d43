"""Copy one row, chosen by an index in memory: the last token's hidden state after a prefill."""

from typing import Literal

import tilec as tl

from .dims import E, H


class T(tl.Dim):
    """number of rows"""


@tl.kernel
def gather_row(
    x: tl.In[E, T, H],
    index: tl.In[tl.i32, Literal[1]],
    out: tl.Out[E, Literal[1], H],
    *,
    E: tl.Const,
    H: tl.Const,
    BLOCK: tl.Const,
):
    """`out[0] = x[index[0]]`, BLOCK columns per block."""
    tl.grid(tl.cdiv(H, BLOCK))
    tl.values(index, 0, T)
    part = tl.bid(0)
    row = tl.load(x, offset=(tl.load(index, 0), part * BLOCK), shape=(1, BLOCK), pad=0)
    tl.store(out, (0, part), row, mask=True)
