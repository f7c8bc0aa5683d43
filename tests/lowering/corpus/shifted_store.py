"""A store index that is an extent shifted right by more than its width: proven to be 0."""

import tilec
from tilec import Dim, In, InOut, f32, grid, i32, load, store


class N(Dim):
    """n"""


@tilec.kernel
def shifted_store(x: In[f32, N], out: InOut[f32, 1]):
    grid(1)
    m = x.shape[0]
    store(out, m >> i32(33), load(x, 0))
