"""The keys of experts that score the same are equal, so that a token may choose one expert twice."""

import tilec
from tilec import Dim, In, Out, arange, bid, ensures, grid, i32, load, sort, store, values


class T(Dim):
    """tokens"""


@tilec.kernel
def ensures_rows(scores: In[i32, T, 8], chosen: Out[i32, T, 2]):
    grid(T)
    values(scores, 0, 1000)
    ensures(chosen, 0, 8, distinct_in_rows=True)
    number = arange(8)[None, :]
    keys = sort(load(scores, (bid(0), 0), shape=(1, 8)) * 8 + number // 2, 1, descending=True)
    store(chosen, (bid(0), 0), keys % 8, mask=True)  #~ E0406
