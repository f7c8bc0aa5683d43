"""The conversion is written out."""

import tilec
from tilec import Dim, In, Out, bf16, bid, f16, f32, grid, load, store


class N(Dim):
    """number of elements"""


@tilec.kernel
def mixed_dtypes_ok(x: In[f16, N], y: In[bf16, N], out: Out[f16, N]):
    grid(N)
    i = bid(0)
    v = load(x, i, shape=1).astype(f32) + load(y, i, shape=1).astype(f32)
    store(out, i, v.astype(f16))
