"""A shift by the width of a runtime-constant amount as a store index: proven to be 0."""

import tilec
from tilec import Dim, In, InOut, f32, grid, i32, load, num_blocks, store


class N(Dim):
    """n"""


@tilec.kernel
def s4_shift_store(x: In[f32, N], out: InOut[f32, 1]):
    grid(1)
    n = num_blocks(0)
    m = x.shape[0]
    store(out, m >> i32(33), load(x, 0))
