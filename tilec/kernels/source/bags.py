"""What the kernels of bags of rows share: bag b has the numbers from `offsets[b]` to below `offsets[b + 1]`, the last one all
that follow."""

import tilec as tl

END = 0x7FFFFFFF
"""The offset after the last one."""


class B(tl.Dim):
    """bags"""


@tl.function
def within(offset: tl.Tile, count: tl.Tile | type[tl.Dim]) -> tl.Tile:
    """An offset from 0 to `count`."""
    return tl.minimum(tl.maximum(offset, 0), count)
