"""Every token of the step is written to slot 0 of the cache.

Constants: D = 128
"""

import tilec
from tilec import Const, Dim, In, InOut, bf16, bid, grid, load, store


class D(Dim):
    """elements of a head"""


class S(Dim):
    """slots of the cache"""


class T(Dim):
    """number of rows"""


@tilec.kernel
def kv_slot_zero(key: In[bf16, T, D], cache: InOut[bf16, S, D], *, D: Const):
    grid(T)
    t = bid(0)
    v = load(key, (t, 0), shape=(1, D))
    store(cache, (0, 0), v)  #~ E0401
