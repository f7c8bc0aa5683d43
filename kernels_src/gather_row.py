"""Copy one row, chosen by an index in memory: the last token's hidden state after a prefill."""

from typing import Literal

import tilec
from tilec import Const, Dim, Element, In, Out, bid, cdiv, grid, i32, load, store, values


class E(Element):
    """bf16 or f16"""


class T(Dim):
    """number of rows"""


class H(Dim):
    """hidden size"""


@tilec.kernel
def gather_row(x: In[E, T, H], index: In[i32, Literal[1]], out: Out[E, Literal[1], H], *, E: Const, H: Const, BLOCK: Const):
    """`out[0] = x[index[0]]`, BLOCK columns per block."""
    grid(cdiv(H, BLOCK))
    values(index, 0, T)
    part = bid(0)
    row = load(x, offset=(load(index, 0), part * BLOCK), shape=(1, BLOCK), pad=0)
    store(out, (0, part), row, mask=True)
