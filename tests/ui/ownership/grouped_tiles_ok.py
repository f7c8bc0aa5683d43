"""The tiles of a matrix in groups of rows, so that neighbours share operands in the L2 cache.

Constants: N = 1000, GROUP = 8
"""

import tilec
from tilec import Const, Dim, In, Out, bid, cdiv, f32, grid, load, store


class M(Dim):
    """number of rows"""


class N(Dim):
    """number of elements"""


@tilec.kernel
def grouped_tiles_ok(a: In[f32, M, N], out: Out[f32, M, N], *, N: Const, GROUP: Const):
    grid(cdiv(M, 64) * cdiv(N, 64))
    tiles_m = cdiv(M, 64)
    tiles_n = cdiv(N, 64)
    width = GROUP * tiles_n
    first = bid(0) // width * GROUP
    size = min(tiles_m - first, GROUP)
    row = first + bid(0) % width % size
    column = bid(0) % width // size
    v = load(a, (row, column), shape=(64, 64), pad=0)
    store(out, (row, column), v, mask=True)
