"""Two prefix sums with one number, of tiles with one and with two axes: the prover stops with a ValueError."""

import tilec
from tilec import Dim, In, InOut, cumsum, f32, gather, grid, i32, load, reshape, store, where


class M(Dim):
    """entries of the table"""


@tilec.kernel
def u2_sums_of_two_shapes(x: In[i32, 16], z: In[i32, 2, 8], t: In[f32, M], out: InOut[f32, 2, 8]):
    grid(1)
    a = where(load(x, 0, shape=16) > 0, 1, 0)
    b = where(load(z, (0, 0), shape=(2, 8)) > 0, 1, 0)
    y = reshape(reshape(a, (2, 8)), (16,))
    s = cumsum(y, 0, exclusive=True)
    r = cumsum(b, 1, exclusive=True)
    store(out, (0, 0), gather(t, (reshape(s, (2, 8)) - r,)))
