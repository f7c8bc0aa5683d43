"""Copy rows of keys and values into their slots of the cache."""

import tilec
from tilec import Const, Dim, Element, In, InOut, bid, grid, i32, load, store, values


class E(Element):
    """bf16 or f16"""


class T(Dim):
    """number of tokens"""


class HKV(Dim):
    """key heads, and value heads"""


class D(Dim):
    """elements of a head"""


class S(Dim):
    """slots of the cache"""


@tilec.kernel
def kv_update(
    k: In[E, T, HKV, D],
    v: In[E, T, HKV, D],
    slots: In[i32, T],
    k_cache: InOut[E, S, HKV, D],
    v_cache: InOut[E, S, HKV, D],
    *,
    E: Const,
    HKV: Const,
    D: Const,
):
    """`k_cache[slots[t]] = k[t]`, and the same for values; no two tokens of a launch share a slot."""
    grid(T)
    values(slots, 0, S, distinct=True)
    t = bid(0)
    slot = load(slots, t)
    store(k_cache, (slot, 0, 0), load(k, (t, 0, 0), shape=(1, HKV, D)))
    store(v_cache, (slot, 0, 0), load(v, (t, 0, 0), shape=(1, HKV, D)))
