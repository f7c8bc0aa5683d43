"""requires(A * B <= S) guards a * B + b."""

import tilec
from tilec import Dim, In, InOut, bid, f32, grid, load, requires, store


class A(Dim):
    """rows"""


class B(Dim):
    """columns"""


class S(Dim):
    """slots"""


@tilec.kernel
def c1_numpy(x: In[f32, A], y: In[f32, B], s: InOut[f32, S]):
    grid(A)
    requires(A * B <= S)
    a = bid(0)
    for b in range(B):
        store(s, a * B + b, load(x, a) + load(y, b))
