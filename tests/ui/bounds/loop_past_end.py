"""The loop starts one tile late and ends one tile late.

Constants: H = 4096, BLOCK = 256
"""

import tilec
from tilec import Const, Dim, In, Out, bid, f32, grid, load, store, sum, zeros


class H(Dim):
    """elements of a row"""


class T(Dim):
    """number of rows"""


@tilec.kernel
def loop_past_end(x: In[f32, T, H], out: Out[f32, T], *, H: Const, BLOCK: Const):
    grid(T)
    row = bid(0)
    acc = zeros((1,), f32)
    for j in range(H // BLOCK):
        acc = acc + sum(load(x, (row, j + 1), shape=(1, BLOCK)), axis=1)  #~ E0301
    store(out, row, acc)
