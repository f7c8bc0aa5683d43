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
    BH: Const,
):
    """`out[i] = x[order[i] // K]`; `order` sorts the T * K choices of experts, choice `t * K + k` being token t's.

    A block moves one part of K rows, and all blocks of a part come before those of the next: a part of all tokens stays in the
    cache for the K times that it is read."""
    assert H % BH == 0
    grid(T, H // BH)
    values(order, 0, T * K)
    part = bid(1)
    for i in range(bid(0) * K, bid(0) * K + K):
        store(out, (i, part), load(x, (load(order, i) // K, part), shape=(1, BH)))
