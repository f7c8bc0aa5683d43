"""The rows of tokens in the order of the experts that they go to."""

from typing import Literal

import tilec as tl


class E(tl.Element):
    """any dtype"""


class T(tl.Dim):
    """number of tokens"""


class K(tl.Dim):
    """experts per token"""


class H(tl.Dim):
    """elements of a row"""


@tl.kernel
def moe_gather(
    x: tl.In[E, T, H],
    order: tl.In[tl.i32, Literal["T * K"]],
    out: tl.Out[E, Literal["T * K"], H],
    *,
    E: tl.Const,
    K: tl.Const,
    H: tl.Const,
    BH: tl.Const,
):
    """`out[i] = x[order[i] // K]`; `order` sorts the T * K choices of experts, choice `t * K + k` being token t's.

    A block moves one part of K rows, and all blocks of a part come before those of the next: a part of all tokens stays in the
    cache for the K times that it is read."""
    assert H % BH == 0
    tl.grid(T, H // BH)
    tl.values(order, 0, T * K)
    part = tl.bid(1)
    for i in range(tl.bid(0) * K, tl.bid(0) * K + K):
        tl.store(out, (i, part), tl.load(x, (tl.load(order, i) // K, part), shape=(1, BH)))
