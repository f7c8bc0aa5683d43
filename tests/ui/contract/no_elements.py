"""The extent of a tensor is negative wherever the precondition holds."""

import tilec
from tilec import Dim, In, Out, bid, f32, grid, load, requires, store


class N(Dim):
    """elements"""


@tilec.kernel
def no_elements(x: In[f32, N - 8], out: Out[f32, N]):
    grid(N)
    requires(N <= 4)  #~ E0307
    store(out, bid(0), load(x, bid(0), pad=0))
