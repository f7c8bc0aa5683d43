"""The divisor and the modulus of a swizzle differ.

Constants: HEADS = 6, D = 64
"""

import tilec
from tilec import Const, Dim, In, Out, bid, f32, grid, load, store


class D(Dim):
    """elements of a head"""


class HEADS(Dim):
    """number of heads"""


class T(Dim):
    """number of rows"""


@tilec.kernel
def longest_first(x: In[f32, T, HEADS, D], out: Out[f32, T, HEADS, D], *, HEADS: Const, D: Const):
    grid(T * HEADS)
    row = T - 1 - bid(0) // HEADS
    head = bid(0) % (HEADS - 1)
    v = load(x, (row, head, 0), shape=(1, 1, D))
    store(out, (row, head, 0), v)  #~ E0401 E0403
