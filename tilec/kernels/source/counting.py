"""What the kernels that count numbers in bins share."""

import tilec as tl


class N(tl.Dim):
    """numbers"""


class BINS(tl.Dim):
    """bins"""


@tl.function
def is_in(bins: tl.Tile, FEW: int) -> tl.Tile:
    """1 where a number is in a bin, else 0: a row for each number, a column for each of FEW bins."""
    return tl.where(bins[:, None] == tl.arange(FEW)[None, :], 1, 0)


@tl.function
def count(counts: tl.Tensor, bins: tl.Tile) -> None:
    """Add 1 for each number to its bin, if it has one."""
    tl.atomic_add(counts, 1, at=bins, mask=True)
