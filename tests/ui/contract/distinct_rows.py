"""More elements in a row than numbers for them to be distinct."""

import tilec
from tilec import Dim, In, Out, bid, f32, grid, i32, load, requires, store, values


class T(Dim):
    """tokens"""


class K(Dim):
    """experts of a token"""


@tilec.kernel
def distinct_rows(ix: In[i32, T, K], x: In[f32, 8], out: Out[f32, T, K]):
    grid(T, K)
    requires(K % 16 == 0)  #~ E0307
    values(ix, 0, 8, distinct_in_rows=True)
    store(out, (bid(0), bid(1)), load(x, load(ix, (bid(0), bid(1)))))
