"""The number of pairs is what a launch sees."""

import tilec as tl


class H(tl.Dim):
    """pairs of columns"""


@tl.kernel
def packed_extent(w: tl.In[tl.u4, "2 * H"], out: tl.Out[tl.f32, 1]):
    tl.grid(1)
    tl.store(out, 0, tl.load(w, 0, shape=1).astype(tl.f32))
