"""Two tokens may have been assigned one slot.

Constants: D = 128
"""

import tilec
from tilec import Const, Dim, In, InOut, bf16, bid, grid, i32, load, store, values


class D(Dim):
    """elements of a head"""


class S(Dim):
    """slots of the cache"""


class T(Dim):
    """number of rows"""


@tilec.kernel
def kv_slot_repeated(key: In[bf16, T, D], slots: In[i32, T], cache: InOut[bf16, S, D], *, D: Const):
    grid(T)
    values(slots, 0, S)
    t = bid(0)
    v = load(key, (t, 0), shape=(1, D))
    store(cache, (load(slots, t), 0), v)  #~ E0401
