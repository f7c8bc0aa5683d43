"""The step is bounded by the blocks of the grid.

Constants: H = 64
"""

import tilec
from tilec import Const, Dim, In, Out, bid, f32, grid, load, num_blocks, store


class H(Dim):
    """elements of a row"""


class T(Dim):
    """number of rows"""


@tilec.kernel
def loop_counter_ok(x: In[f32, T, H], out: Out[f32, T, H], *, H: Const):
    grid(min(T, 1024))
    for row in range(bid(0), T, num_blocks(0)):
        v = load(x, (row, 0), shape=(1, H))
        store(out, (row, 0), v)
