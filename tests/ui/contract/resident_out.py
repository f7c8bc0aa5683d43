"""What is written is not resident."""

import tilec
from tilec import Dim, In, Out, bid, f32, grid, load, resident, store


class N(Dim):
    """number of elements"""


@tilec.kernel
def resident_out(x: In[f32, N], out: Out[f32, N]):
    grid(N)
    resident(x, out)  #~ E0207
    i = bid(0)
    store(out, i, load(x, i, shape=1))
