"""The last tile of a row is clipped at its end.

Constants: H = 1000, BLOCK = 256
"""

import tilec
from tilec import Const, Dim, In, Out, bid, cdiv, f32, grid, load, store


class H(Dim):
    """elements of a row"""


class T(Dim):
    """number of rows"""


@tilec.kernel
def dropped_tail_ok(x: In[f32, T, H], out: Out[f32, T, H], *, H: Const, BLOCK: Const):
    grid(T)
    row = bid(0)
    for j in range(cdiv(H, BLOCK)):
        v = load(x, (row, j), shape=(1, BLOCK), pad=0)
        store(out, (row, j), v * 2.0, mask=True)
