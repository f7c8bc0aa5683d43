"""A loop changes the type of a variable."""

import tilec
from tilec import Dim, In, Out, bid, f32, grid, i32, load, store


class N(Dim):
    """number of elements"""


@tilec.kernel
def carried_type(x: In[f32, N], out: Out[f32, N]):
    grid(N)
    i = bid(0)
    v = load(x, i, shape=1)
    for j in range(3):  #~ E0208
        v = v.astype(i32)
    store(out, i, v)
