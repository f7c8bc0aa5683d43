"""The heads of the cache are `S` rows apart.

Constants: KV_HEADS = 8, D = 128, S = 4096
"""

import tilec
from tilec import Const, Dim, In, InOut, bf16, bid, grid, i32, load, requires, store


class D(Dim):
    """elements of a head"""


class KV_HEADS(Dim):
    """number of key and value heads"""


class S(Dim):
    """slots of the cache"""


class T(Dim):
    """number of rows"""


@tilec.kernel
def stride_mismatch_ok(
    key: In[bf16, T, KV_HEADS, D],
    cache: InOut[bf16, KV_HEADS * S, D],
    pos: i32,
    *,
    KV_HEADS: Const,
    D: Const,
    S: Const,
):
    grid(T, KV_HEADS)
    requires(pos >= 0, pos + T <= S)
    t = bid(0)
    h = bid(1)
    v = load(key, (t, h, 0), shape=(1, 1, D))
    store(cache, (h * S + pos + t, 0), v.reshape((1, D)))
