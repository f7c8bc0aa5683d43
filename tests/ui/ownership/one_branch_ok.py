"""Both sides of a branch write."""

import tilec
from tilec import Dim, In, Out, bid, f32, full, grid, load, store


class N(Dim):
    """number of elements"""


@tilec.kernel
def one_branch_ok(x: In[f32, N], out: Out[f32, N]):
    grid(N)
    i = bid(0)
    v = load(x, i)
    if i % 2 == 0:
        store(out, i, v.reshape((1,)))
    else:
        store(out, i, full((1,), 0.0, f32))
