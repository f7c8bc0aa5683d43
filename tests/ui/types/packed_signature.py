"""Signatures that packed dtypes do not have."""

import tilec as tl


class N(tl.Dim):
    """rows"""


class S(tl.Dim):
    """a stride"""


@tl.kernel
def packed_signature(
    scalar: tl.u4,  #~ E0107
    sums: tl.Atomic[tl.i4, N, 4],  #~ E0201
    odd: tl.In[tl.u4, N, 7],  #~ E0213
    rows: tl.In[tl.u4, N, 8, tl.Strides[S, 1]],  #~ E0213
    columns: tl.In[tl.f4e2m1, N, 8, tl.Strides[2, 2]],  #~ E0107
    out: tl.Out[tl.f32, N],
):
    tl.grid(N)
    tl.store(out, tl.bid(0), 0.0)
