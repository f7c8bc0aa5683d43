"""What the kernels of pools share whose windows are constants. They take planes as `[M, H // STRIDE, STRIDE, W]`, for a stride
of 1 or 2, so that what all windows have in one of their rows is a box."""

import tilec as tl


class HS(tl.Dim):
    """rows of a plane, in strides"""


class STRIDE(tl.Dim):
    """rows and columns from a window to the next"""


@tl.function
def every(x: tl.Tensor, plane: int, h: int, w: int, r: int, c: int, BH: int, BW: int, STRIDE: int, outside: float) -> tl.Tile:
    """`x[plane, STRIDE * (h + i) + r, STRIDE * (w + j) + c]` at `[i, j]`, or `outside`. Boxes begin at columns that are
    multiples of the stride, so that those of several taps share what they read."""
    offset = plane, h + r // STRIDE, r % STRIDE, STRIDE * w + (c - c % STRIDE)
    box = tl.load(x, offset=offset, shape=(1, BH, 1, STRIDE * BW), pad=outside)
    if STRIDE == 1:
        return tl.reshape(box, (BH, BW))
    columns = tl.split(tl.reshape(box, (BH, BW, STRIDE)))
    return columns[c % STRIDE]


@tl.function
def windows(x: tl.Tensor, plane: int, h: int, w: int, r: int, c: int, BH: int, BW: int, outside: float) -> tl.Tile:
    """`x[plane, h + r + i, w + c + j]` at `[i, j]`, or `outside`."""
    return tl.reshape(tl.load(x, offset=(plane, h + r, w + c), shape=(1, BH, BW), pad=outside), (BH, BW))


@tl.function
def put(x: tl.Tensor, columns: tuple[tl.Tile, ...], plane: int, i: int, a: int, j: int, BH: int, BW: int, STRIDE: int) -> None:
    """Stores row `a` of each stride of tile i, j of a plane, whose columns in a stride are `columns`."""
    if STRIDE == 1:
        rows = columns[0]
    else:
        rows = tl.join(columns[0], columns[1])
    tl.store(x, (plane, i, a, j), tl.reshape(rows, (1, BH, 1, STRIDE * BW)), mask=True)
