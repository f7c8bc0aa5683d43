"""A padded token id is among those that the table has."""

import tilec
from tilec import Dim, In, Out, arange, bid, f32, gather, grid, i32, maximum, store, sum, values


class T(Dim):
    """number of rows"""


class V(Dim):
    """rows of the table"""


@tilec.kernel
def padded_index_ok(ids: In[i32, T], table: In[f32, V], out: Out[f32, T]):
    grid(T)
    values(ids, 5, V)
    row = bid(0)
    token = gather(ids, (row + arange(4),), pad=5)
    v = gather(table, (maximum(token, 5) - 5,), pad=0)
    store(out, row, sum(v, axis=0).reshape((1,)))
