"""A padded token id is 0, whatever `values` says of the stored ones."""

import tilec
from tilec import Dim, In, Out, arange, bid, f32, gather, grid, i32, store, sum, values


class T(Dim):
    """number of rows"""


class V(Dim):
    """rows of the table"""


@tilec.kernel
def padded_index(ids: In[i32, T], table: In[f32, V], out: Out[f32, T]):
    grid(T)
    values(ids, 5, V)
    row = bid(0)
    token = gather(ids, (row + arange(4),), pad=0)
    v = gather(table, (token - 5,))  #~ E0303
    store(out, row, sum(v, axis=0).reshape((1,)))
