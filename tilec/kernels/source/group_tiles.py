"""Which groups the rows of each tile are of."""

from typing import Literal

from grouped_parts import LIMIT, ROWS, X

import tilec as tl


class T(tl.Dim):
    """rows of all groups"""


@tl.function
def group_of(offsets: tl.Tensor, row: tl.Tile, count: tl.Scalar) -> tl.Tile:
    """The last group that begins at a row or before it, by halving; at most `count`, the first if there is none."""
    g = tl.zeros(row.shape, tl.i32)
    for step in range(25):
        middle = tl.minimum(g, count) + (LIMIT >> step)
        g = tl.where(tl.gather(offsets, middle, pad=2147483647) <= row, middle, g)
    return tl.minimum(g, count)


@tl.kernel
def group_tiles(
    offsets: tl.In[tl.i32, Literal["X + 1"]],
    groups: tl.Out[tl.i32, Literal["(T + ROWS - 1) // ROWS"], Literal[2]],
    T: tl.i32,
    *,
    BLOCK: tl.Const,
):
    """Group g has rows `offsets[g]` to `offsets[g + 1] - 1`; those of tile m, of ROWS rows, are of groups `groups[m, 0]` to
    `groups[m, 1] - 1`, or of none. Offsets are not trusted: with wrong ones, tiles have other groups."""
    tl.requires(X <= LIMIT, T >= 1, T <= LIMIT)
    tl.grid(tl.cdiv(tl.cdiv(T, ROWS), BLOCK))
    i = tl.bid(0)
    row = (i * BLOCK + tl.arange(BLOCK)) * ROWS
    tl.store(groups, (i, 0), group_of(offsets, row, X)[:, None], mask=True)
    tl.store(groups, (i, 1), group_of(offsets, tl.minimum(row + ROWS, T) - 1, X)[:, None] + 1, mask=True)
