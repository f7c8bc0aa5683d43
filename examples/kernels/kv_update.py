"""Copy rows of keys and values into their slots of the cache."""

import tilec as tl


class E(tl.Element):
    """any dtype"""


class T(tl.Dim):
    """number of tokens"""


class HKV(tl.Dim):
    """key heads, and value heads"""


class D(tl.Dim):
    """elements of a head"""


class S(tl.Dim):
    """slots of the cache"""


@tl.kernel
def kv_update(
    k: tl.In[E, T, HKV, D],
    v: tl.In[E, T, HKV, D],
    slots: tl.In[tl.i32, T],
    k_cache: tl.InOut[E, S, HKV, D],
    v_cache: tl.InOut[E, S, HKV, D],
    *,
    E: tl.Const,
    HKV: tl.Const,
    D: tl.Const,
):
    """`k_cache[slots[t]] = k[t]`, and the same for values; no two tokens of a launch share a slot."""
    tl.grid(T)
    tl.values(slots, 0, S, distinct=True)
    t = tl.bid(0)
    slot = tl.load(slots, t)
    tl.store(k_cache, (slot, 0, 0), tl.load(k, (t, 0, 0), shape=(1, HKV, D)))
    tl.store(v_cache, (slot, 0, 0), tl.load(v, (t, 0, 0), shape=(1, HKV, D)))
