"""A launch sees bytes, of which it does not invert `K // 2`."""

import tilec as tl


class K(tl.Dim):
    """columns"""


@tl.kernel
def packed_extent(w: tl.In[tl.u4, K], out: tl.Out[tl.f32, 1]):  #~ E0214
    tl.grid(1)
    tl.store(out, 0, tl.load(w, 0, shape=1).astype(tl.f32))
