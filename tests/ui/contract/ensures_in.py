"""A tensor that is only read is not the kernel's to promise."""

import tilec
from tilec import Dim, In, Out, bid, ensures, grid, i32, load, store


class N(Dim):
    """elements"""


@tilec.kernel
def ensures_in(ids: In[i32, N], out: Out[i32, N]):
    grid(N)
    ensures(ids, 0, N)  #~ E0207
    store(out, bid(0), load(ids, bid(0), shape=1))
