"""No launch satisfies this contract; the store is plainly out of bounds and never covers."""

import tilec
from tilec import Dim, In, Out, f32, grid, load, requires, store


class N(Dim):
    """n"""


class M(Dim):
    """m"""


@tilec.kernel
def q1_contradiction(x: In[f32, M], out: Out[f32, N]):
    grid(1)
    requires(N < M, M < N)
    store(out, M - 1, load(x, N - 1))
