"""Nothing is raised in a kernel."""

import tilec
from tilec import Dim, In, Out, bid, f32, grid, load, store


class N(Dim):
    """number of elements"""


@tilec.kernel
def try_block(x: In[f32, N], out: Out[f32, N]):
    grid(N)
    i = bid(0)
    v = load(x, i, shape=1)
    store(out, i, v)

    try:  #~ E0105
        store(out, i, v)
    except ValueError:
        pass
