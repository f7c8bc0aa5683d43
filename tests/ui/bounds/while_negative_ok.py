"""The number of a `while` is that of the tiles left, the last one in part.

Constants: BLOCK = 64
"""

import tilec
from tilec import Const, Dim, In, Out, decreases, f32, grid, i32, invariant, load, store, zeros
from tilec import sum as total


class N(Dim):
    """number of elements"""


@tilec.kernel
def while_negative_ok(x: In[f32, N], out: Out[f32, 1], *, BLOCK: Const):
    grid(1)
    i = i32(0)
    sums = zeros((BLOCK,), f32)
    while i <= N // BLOCK:
        invariant(i >= 0)
        decreases(N // BLOCK - i + 1)
        sums = sums + load(x, i, shape=(BLOCK,), pad=0)
        i += 1
    store(out, 0, total(sums).reshape(1))
