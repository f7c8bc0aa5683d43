"""What the kernels that sort choices of experts share."""

import tilec as tl


class N(tl.Dim):
    """choices of experts"""


class P(tl.Dim):
    """tiles of choices"""


class X(tl.Dim):
    """experts"""


@tl.function
def is_chosen(ids: tl.Tensor, tile: int, BLOCK: int, EXPERTS: int) -> tl.Tile:
    """1 where a choice of a tile is that expert, else 0: a row for each choice, a column for each expert."""
    chosen = tl.load(ids, tile, shape=BLOCK, pad=-1)
    return tl.where(chosen[:, None] == tl.arange(EXPERTS)[None, :], 1, 0)
