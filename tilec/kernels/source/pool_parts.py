"""What the kernels of pools share: planes, and outputs."""

import tilec as tl

MOST = 16384
"""Elements of a side of a plane, of a window, of a stride."""


class E(tl.Element):
    """bf16, f16 or f32"""


class M(tl.Dim):
    """planes"""


class H(tl.Dim):
    """rows of a plane"""


class W(tl.Dim):
    """columns of a plane"""


class OH(tl.Dim):
    """rows of outputs"""


class OW(tl.Dim):
    """columns of outputs"""


@tl.function
def rows_and_columns(i: int, j: int, BH: int, BW: int) -> tuple[tl.Tile, tl.Tile]:
    """The row and the column of each element of tile i, j of a plane, whose first axis are the columns: a warp then gathers
    neighbours of one row at once. Whole tiles, so that what is computed of them has one layout: one of rows or columns alone
    would have to change its layout at every use."""
    h = tl.broadcast_to((i * BH + tl.arange(BH))[None, :], (BW, BH))
    w = tl.broadcast_to((j * BW + tl.arange(BW))[:, None], (BW, BH))
    return h, w


@tl.function
def as_rows(tile: tl.Tile) -> tl.Tile:
    """A tile whose first axis are the columns as part of a plane."""
    return tl.permute(tile, (1, 0))[None, :, :]
