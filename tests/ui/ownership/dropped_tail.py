"""The last `H % BLOCK` elements of each row are never written.

Constants: H = 1000, BLOCK = 256
"""

import tilec
from tilec import Const, Dim, In, Out, bid, f32, grid, load, store


class H(Dim):
    """elements of a row"""


class T(Dim):
    """number of rows"""


@tilec.kernel
def dropped_tail(x: In[f32, T, H], out: Out[f32, T, H], *, H: Const, BLOCK: Const):
    grid(T)
    row = bid(0)
    for j in range(H // BLOCK):
        v = load(x, (row, j), shape=(1, BLOCK))
        store(out, (row, j), v * 2.0)  #~ E0403
