"""A query head is taken for a key head.

Constants: KV_HEADS = 8, GROUP = 4, D = 128
"""

import tilec
from tilec import Const, Dim, In, Out, bf16, bid, grid, load, store


class D(Dim):
    """elements of a head"""


class GROUP(Dim):
    """heads that share a key head"""


class KV_HEADS(Dim):
    """number of key and value heads"""


class S(Dim):
    """slots of the cache"""


class T(Dim):
    """number of rows"""


@tilec.kernel
def shared_heads(
    q: In[bf16, T, KV_HEADS * GROUP, D],
    k: In[bf16, KV_HEADS, S, D],
    out: Out[bf16, T, KV_HEADS * GROUP, D],
    *,
    KV_HEADS: Const,
    GROUP: Const,
    D: Const,
):
    grid(T, KV_HEADS * GROUP)
    t = bid(0)
    h = bid(1)
    a = load(q, (t, h, 0), shape=(1, 1, D))
    b = load(k, (h, 0, 0), shape=(1, 1, D))  #~ E0301
    store(out, (t, h, 0), a * b)
