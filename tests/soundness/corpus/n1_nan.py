"""A loop variable that is a word of isl: the set of launches that go wrong was read as empty."""

import tilec
from tilec import Dim, In, InOut, f32, full, grid, store


class N(Dim):
    """length"""


class M(Dim):
    """rows"""


@tilec.kernel
def n1_nan(a: In[f32, M, N], x: InOut[f32, M * N]):
    grid(1)
    for nan in range(M):
        store(x, full((1,), 1.0, f32), offset=nan * N + N)
