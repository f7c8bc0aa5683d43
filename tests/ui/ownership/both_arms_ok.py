"""Both arms of a branch on data write the block's row, and `Scratch` is written and read under one condition."""

import tilec
from tilec import Dim, In, Out, Scratch, bid, boolean, f32, full, grid, load, num_blocks, requires, store, zeros


class N(Dim):
    """rows"""


class M(Dim):
    """columns"""


@tilec.kernel
def both_arms_ok(w: In[f32, M], v: In[f32, N], x: In[f32, N * M], q: In[boolean, N * M], s: Scratch[f32, N * M, 4], out: Out[f32, N * M, 4]):  # noqa: E501
    grid(N, M)
    requires(N * M <= 1000000)
    row = bid(0) * num_blocks(1) + bid(1)
    for i in range(3):
        if load(x, row) > 0.5:
            store(s, (row, 0), zeros((1, 4), f32))
            load(s, (row, i), shape=(1, 1))
    if load(q, row):
        store(out, (row, 0), full((1, 4), 1.0, f32))
    else:
        store(out, (row, 0), zeros((1, 4), f32))
