"""Add the elements of a COO matrix to a dense one; coordinates may occur several times."""

import tilec as tl


class Z(tl.Dim):
    """stored elements"""


class M(tl.Dim):
    """rows"""


class N(tl.Dim):
    """columns"""


@tl.kernel
def coo_dense(
    rows: tl.In[tl.i32, Z],
    columns: tl.In[tl.i32, Z],
    x: tl.In[tl.f32, Z],
    dense: tl.Atomic[tl.f32, M, N],
    *,
    BLOCK: tl.Const,
):
    tl.values(rows, 0, M)
    tl.values(columns, 0, N)
    tl.grid(tl.cdiv(Z, BLOCK))
    i = tl.bid(0)
    r = tl.load(rows, i, shape=BLOCK, pad=-1)
    c = tl.load(columns, i, shape=BLOCK, pad=-1)
    v = tl.load(x, i, shape=BLOCK, pad=0)
    tl.atomic_add(dense, v, at=(r, c), mask=True)
