"""The tiles of groups, each with its group and its first row."""

from typing import Literal

from group_tiles import group_of
from grouped_parts import LIMIT, TILE, X

import tilec as tl


class T(tl.Dim):
    """rows of all groups"""


@tl.kernel
def group_blocks(
    begins: tl.In[tl.i32, Literal["X + 2"]],
    before: tl.In[tl.i32, Literal["X + 2"]],
    groups: tl.Out[tl.i32, Literal["T // TILE + X + 2"]],
    starts: tl.Out[tl.i32, Literal["T // TILE + X + 2"]],
    T: tl.i32,
    *,
    BLOCK: tl.Const,
):
    """Tile m has rows `starts[m]` to `starts[m + 1] - 1`, at most TILE, of group `groups[m]`: X if they are of none. There are
    `before[X + 1]` tiles; those after them begin at T and have no rows. `begins` and `before` are of `group_starts`."""
    tl.requires(X <= 65536, T >= 1, T <= LIMIT)
    tl.grid(tl.cdiv(T // TILE + X + 2, BLOCK))
    m = tl.bid(0) * BLOCK + tl.arange(BLOCK)
    g = group_of(before, m, X + 1)
    own = m - tl.gather(before, g, pad=0)
    row = tl.minimum(tl.gather(begins, g, pad=0) + own * TILE, T)
    tl.store(groups, tl.bid(0), g, mask=True)
    tl.store(starts, tl.bid(0), tl.where(g > X, T, row), mask=True)
