"""Copies rows between two offsets: block `b` copies rows `cu[b]` to before `cu[b + 1]`."""

from typing import Literal

import tilec
from tilec import Dim, In, InOut, bid, f32, grid, i32, load, store, values


class B(Dim):
    """segments"""


class T(Dim):
    """rows"""


@tilec.kernel
def segments(cu: In[i32, Literal["B + 1"]], x: In[f32, T, 64], out: InOut[f32, T, 64], B: i32):
    grid(B)
    values(cu, 0, T + 1, sorted=True)
    b = bid(0)
    for j in range(load(cu, b), load(cu, b + 1)):
        store(out, (j, 0), load(x, (j, 0), shape=(1, 64)))
