"""What the sum of each bag of rows is multiplied by."""

from bags import END, B, within

import tilec as tl


@tl.kernel
def bag_scales(offsets: tl.In[tl.i32, B], scales: tl.Out[tl.f32, B], count: tl.i32, mean: tl.i32, *, BLOCK: tl.Const):
    """1, or one over the number of rows of each bag if `mean` is not 0; 0 for a bag without rows. Bags have `count` numbers in
    all. A block computes BLOCK scales."""
    tl.requires(count >= 0 and B <= 1073741824)
    tl.grid(tl.cdiv(B, BLOCK))
    tile = tl.bid(0)
    begin = within(tl.load(offsets, tile, shape=BLOCK, pad=0), count)
    end = within(tl.load(offsets, offset=tile * BLOCK + 1, shape=BLOCK, pad=END), count)
    length = tl.maximum(end - begin, 0).astype(tl.f32)
    divisor = tl.where(mean != 0, tl.maximum(length, 1.0), 1.0)
    tl.store(scales, tile, tl.where(length > 0, 1.0 / divisor, 0.0), mask=True)
