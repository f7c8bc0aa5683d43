"""Sort each row, with a payload."""

import tilec as tl


class T(tl.Dim):
    """rows"""


class N(tl.Dim):
    """elements of a row"""


@tl.kernel
def bitonic_sort(
    keys: tl.In[tl.f32, T, N],
    payload: tl.In[tl.i32, T, N],
    out: tl.Out[tl.f32, T, N],
    moved: tl.Out[tl.i32, T, N],
    *,
    N: tl.Const,
):
    tl.grid(T)
    row = tl.bid(0)
    a, p = tl.sort((tl.load(keys, (row, 0), shape=(1, N)), tl.load(payload, (row, 0), shape=(1, N))), 1)
    tl.store(out, (row, 0), a)
    tl.store(moved, (row, 0), p)
