"""Two preconditions that no sizes satisfy: everything would hold of such a kernel."""

import tilec
from tilec import Dim, In, Out, f32, grid, load, requires, store


class N(Dim):
    """elements"""


class M(Dim):
    """elements of the source"""


@tilec.kernel
def contradiction(x: In[f32, M], out: Out[f32, N]):
    grid(1)
    requires(N < M, M < N)  #~ E0307
    store(out, M - 1, load(x, N - 1))
