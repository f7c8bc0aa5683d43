"""A left shift by the width or more is 0, so that the box begins at 5 and hangs over: its mask is needed, and stays."""

import tilec
from tilec import Dim, In, InOut, f32, full, grid, i32, minimum, store


class N(Dim):
    """n"""


@tilec.kernel
def shifted_out_ok(x: In[f32, N], out: InOut[f32, 8]):
    grid(1)
    n = x.shape[0]
    off = 5 - minimum(n << i32(33), 5)
    store(out, full((4,), 1.0, f32), offset=off, mask=True)
