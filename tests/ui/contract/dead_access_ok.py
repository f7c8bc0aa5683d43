"""An access that is never executed is no contradiction of the contract."""

import tilec
from tilec import Dim, In, Out, bid, f32, grid, load, requires, store


class N(Dim):
    """elements"""


@tilec.kernel
def dead_access_ok(x: In[f32, N], out: Out[f32, N]):
    grid(N)
    requires(N <= 100)
    b = bid(0)
    store(out, b, load(x, b))
    if b > 100:
        store(out, b + N, load(x, b))
