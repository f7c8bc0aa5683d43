"""What the kernels that count numbers in bins share."""

import tilec as tl


class N(tl.Dim):
    """numbers"""


class BINS(tl.Dim):
    """bins"""


class COPIES(tl.Dim):
    """counts of a bin"""


@tl.function
def count(counts: tl.Tensor, bins: tl.Tile, COPIES: int, VECTOR: int) -> None:
    """Add 1 for each number to its bin, if it has one, in one of COPIES counts of the bin. Adjacent threads load VECTOR numbers
    each and update different copies, so that few of a warp update one count, or one bank of shared memory, at once."""
    copy = tl.arange(bins.shape[0]) // VECTOR % COPIES
    tl.atomic_add(counts, 1, at=(bins, copy), mask=True)
