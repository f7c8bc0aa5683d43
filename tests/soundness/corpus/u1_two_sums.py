"""Two prefix sums of different tiles with one number: is a sum of `x` taken for one of `z`?"""

import tilec
from tilec import Dim, In, InOut, cumsum, f32, gather, grid, i32, load, reshape, store, where


class M(Dim):
    """entries of the table"""


@tilec.kernel
def u1_two_sums(x: In[i32, 8], z: In[i32, 8], t: In[f32, M], out: InOut[f32, 8]):
    grid(1)
    a = where(load(x, 0, shape=8) > 0, 1, 0)
    b = where(load(z, 0, shape=8) > 0, 1, 0)
    y = reshape(reshape(a, (2, 4)), (8,))
    s = cumsum(y, 0, exclusive=True)
    r = cumsum(b, 0, exclusive=True)
    store(out, 0, gather(t, (s - r,)))
