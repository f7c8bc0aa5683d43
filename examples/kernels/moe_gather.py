"""The rows of tokens in the order of the experts that they go to."""

from typing import Literal

import tilec
from tilec import Const, Dim, Element, In, Out, bid, grid, i32, load, store, values


class E(Element):
    """any dtype"""


class T(Dim):
    """number of tokens"""


class K(Dim):
    """experts per token"""


class H(Dim):
    """elements of a row"""


@tilec.kernel
def moe_gather(
    x: In[E, T, H],
    order: In[i32, Literal["T * K"]],
    out: Out[E, Literal["T * K"], H],
    *,
    E: Const,
    K: Const,
    H: Const,
):
    """`out[i] = x[order[i] // K]`; `order` sorts the T * K choices of experts, choice `t * K + k` being token t's."""
    grid(T * K)
    values(order, 0, T * K)
    i = bid(0)
    store(out, (i, 0), load(x, (load(order, i) // K, 0), shape=(1, H)))
