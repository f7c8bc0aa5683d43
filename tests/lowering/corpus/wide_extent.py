"""An extent whose exact intermediate value needs more than 64 bits."""

import tilec
from tilec import Dim, In, InOut, f32, grid, load, store


class A(Dim):
    """length"""


class B(Dim):
    """length"""


class C(Dim):
    """length"""


@tilec.kernel
def wide_extent(a: In[f32, A], b: In[f32, B], c: In[f32, C], out: InOut[f32, (A * B * C + 1) // (B * C)]):
    grid(1)
    store(out, 0, load(a, 0, shape=256, pad=0), mask=True)
