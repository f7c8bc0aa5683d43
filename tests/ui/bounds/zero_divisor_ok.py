"""The launcher refuses sizes for which the divisor is zero."""

import tilec
from tilec import Dim, In, Out, bid, f32, grid, load, requires, store


class N(Dim):
    """number of elements"""


@tilec.kernel
def zero_divisor_ok(x: In[f32, N], out: Out[f32, N]):
    grid(N)
    requires(N >= 8)
    i = bid(0)
    v = load(x, i // (N // 8) % N, shape=1)
    store(out, i, v)
