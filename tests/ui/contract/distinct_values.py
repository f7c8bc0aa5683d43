"""More elements than numbers for them to be distinct."""

import tilec
from tilec import Dim, In, Out, bid, f32, grid, i32, load, requires, store, values


class N(Dim):
    """elements"""


@tilec.kernel
def distinct_values(ix: In[i32, N], x: In[f32, 8], out: Out[f32, N]):
    grid(N)
    requires(N % 16 == 0)  #~ E0307
    values(ix, 0, 8, distinct=True)
    store(out, bid(0), load(x, load(ix, bid(0))))
