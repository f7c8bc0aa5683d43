"""A stride used as a number."""

import tilec
from tilec import Dim, In, Out, Strides, bid, f32, grid, store


class N(Dim):
    """n"""


class S(Dim):
    """row pitch"""


@tilec.kernel
def h4_stride_value(x: In[f32, N, 4, Strides[S, 1]], out: Out[f32, N]):
    grid(N)
    b = bid(0)
    if S > 4:
        store(out, b, 1.0)
    else:
        store(out, b, 2.0)
