"""What the kernels of a step of a merge sort share: pairs of sorted runs, and tiles of the runs that they become."""

import tilec as tl

LAST = 0x7FFFFFFF
MOST = 536870912


class T(tl.Dim):
    """number of rows"""


class N(tl.Dim):
    """elements of a row"""


class S(tl.Dim):
    """tiles of a row"""


@tl.function
def within(i: tl.Tile | int, low: tl.Tile | int, high: tl.Tile | int) -> tl.Tile:
    return tl.minimum(tl.maximum(i, low), high)


@tl.function
def runs(begin: tl.Tile, run: tl.Tile) -> tuple[tl.Tile, tl.Tile, tl.Tile]:
    """Where the runs that a position is of begin, and the end of the second one."""
    first = within(begin // (2 * run) * (2 * run), 0, MOST)
    second = within(tl.minimum(first + run, N), 0, MOST)
    return first, second, within(tl.minimum(second + within(run, 0, MOST), N), 0, MOST)
