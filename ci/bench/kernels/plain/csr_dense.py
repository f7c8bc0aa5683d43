"""A sparse matrix (CSR) times a dense one of 64 columns."""

from typing import Literal

import tilec as tl


class R(tl.Dim):
    """rows"""


class K(tl.Dim):
    """columns of the sparse matrix"""


class NNZ(tl.Dim):
    """elements that are stored"""


@tl.kernel
def csr_dense(
    data: tl.In[tl.f32, NNZ],
    columns: tl.In[tl.i32, NNZ],
    starts: tl.In[tl.i32, Literal["R + 1"]],
    dense: tl.In[tl.f32, K, 64],
    out: tl.Out[tl.f32, R, 64],
    *,
    BLOCK: tl.Const,
):
    tl.requires(NNZ <= 1 << 30)
    tl.values(columns, 0, K)
    tl.values(starts, 0, NNZ + 1, sorted=True, ends=True)
    tl.grid(R)
    r = tl.bid(0)
    begin, end = tl.load(starts, r), tl.load(starts, r + 1)
    acc = tl.zeros((BLOCK, 64), tl.f32)
    for j in range(tl.cdiv(end - begin, BLOCK)):
        first = begin + j * BLOCK
        v = tl.load(data, offset=first, shape=BLOCK, pad=0)
        v = tl.where(first + tl.arange(BLOCK) < end, v, 0)
        c = tl.load(columns, offset=first, shape=BLOCK, pad=0)
        acc = acc + v[:, None] * tl.gather(dense, (c[:, None], tl.arange(64)[None, :]))
    tl.store(out, (r, 0), tl.sum(acc, axis=0)[None, :])
