"""Two numbers are taken out of the block id, and one alone says where to write: blocks that differ in the other meet."""

import tilec
from tilec import Dim, In, Out, bid, f32, grid, load, store


class H(Dim):
    """heads"""


class M(Dim):
    """rows"""


@tilec.kernel
def one_digit_of_two(x: In[f32, H, M], out: Out[f32, H]):
    grid(H * M)
    b = bid(0)
    h, m = b // M, b % M
    store(out, h, load(x, (h, m)))  #~ E0401
