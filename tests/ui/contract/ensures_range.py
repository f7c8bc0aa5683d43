"""An index that another kernel will use is stored as it was read."""

import tilec
from tilec import Dim, In, Out, bid, ensures, grid, i32, load, store


class N(Dim):
    """elements"""


@tilec.kernel
def ensures_range(chosen: In[i32, N], ids: Out[i32, N], vocabulary: i32):
    grid(N)
    ensures(ids, 0, vocabulary)
    store(ids, bid(0), load(chosen, bid(0), shape=1))  #~ E0406
