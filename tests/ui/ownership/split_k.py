"""All splits of a row write the same partial sum.

Constants: K = 4096, SPLITS = 8
"""

import tilec
from tilec import Const, Dim, In, Out, bid, cdiv, f32, grid, load, store, sum, zeros


class K(Dim):
    """inner extent"""


class T(Dim):
    """number of rows"""


@tilec.kernel
def split_k(x: In[f32, T, K], out: Out[f32, T], *, K: Const, SPLITS: Const):
    grid(T, SPLITS)
    row = bid(0)
    split = bid(1)
    acc = zeros((1,), f32)
    for j in range(split * cdiv(K, SPLITS * 64), (split + 1) * cdiv(K, SPLITS * 64)):
        acc = acc + sum(load(x, (row, j), shape=(1, 64), pad=0), axis=1)
    store(out, row, acc)  #~ E0401
