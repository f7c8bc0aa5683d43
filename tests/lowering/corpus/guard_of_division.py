"""A guard that the code generator once dropped because of a data division by the same scalar: at n = 0 it wrote out[-1]."""

import tilec
from tilec import Dim, In, InOut, Out, bid, grid, i32, load, requires, store


class N(Dim):
    """length"""


@tilec.kernel
def guard_of_division(x: In[i32, N], y: Out[i32, N], out: InOut[i32, N], n: i32):
    grid(N)
    requires(n >= 0, n <= N)
    b = bid(0)
    q = load(x, b) // n
    store(y, b, q)
    if b == 0:  # noqa: SIM102
        if n != 0:
            store(out, n - 1, 1)
