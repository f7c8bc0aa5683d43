"""The index is clamped, and the vocabulary has a word."""

import tilec
from tilec import Dim, In, Out, bid, ensures, grid, i32, load, requires, store, where


class N(Dim):
    """elements"""


@tilec.kernel
def ensures_range_ok(chosen: In[i32, N], ids: Out[i32, N], vocabulary: i32):
    grid(N)
    requires(vocabulary >= 1)
    ensures(ids, 0, vocabulary)
    v = load(chosen, bid(0), shape=1)
    store(ids, bid(0), where((v >= 0) & (v < vocabulary), v, 0))
