"""A left shift by the width or more is 0; `aligned_ranges` takes it for a large number, and the mask of a store is dropped."""

import tilec
from tilec import Dim, In, InOut, f32, full, grid, i32, minimum, store


class N(Dim):
    """n"""


@tilec.kernel
def v1_shl_mask(x: In[f32, N], out: InOut[f32, 8]):
    grid(1)
    n = x.shape[0]
    off = 5 - minimum(n << i32(33), 5)
    store(out, full((4,), 1.0, f32), offset=off, mask=True)
