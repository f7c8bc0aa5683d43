"""The last group has fewer rows, but the swizzle divides by the full group.

Constants: N = 1000, GROUP = 8
"""

import tilec
from tilec import Const, Dim, In, Out, bid, cdiv, f32, grid, load, store


class M(Dim):
    """number of rows"""


class N(Dim):
    """number of elements"""


@tilec.kernel
def grouped_tiles(a: In[f32, M, N], out: Out[f32, M, N], *, N: Const, GROUP: Const):
    grid(cdiv(M, 64) * cdiv(N, 64))
    tiles_m = cdiv(M, 64)
    tiles_n = cdiv(N, 64)
    width = GROUP * tiles_n
    first = bid(0) // width * GROUP
    size = GROUP
    row = first + bid(0) % width % size
    column = bid(0) % width // size
    v = load(a, (row, column), shape=(64, 64), pad=0)
    store(out, (row, column), v, mask=True)  #~ E0403
