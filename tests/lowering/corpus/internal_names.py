"""A parameter with the name of an internal variable."""

import tilec
from tilec import Dim, In, Out, bid, f32, grid, load, store


class N(Dim):
    """length"""


@tilec.kernel
def internal_names(v3: In[f32, N], v4: Out[f32, N]):
    grid(N)
    b = bid(0)
    store(v4, b, load(v3, b))
