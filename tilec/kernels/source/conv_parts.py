"""What the kernels of convolutions of planes share. Planes have their channels last."""

import tilec as tl

MOST = 16384
"""Elements of a side of a plane, of a filter, of a stride."""


class E(tl.Element):
    """bf16 or f16"""


class B(tl.Dim):
    """samples"""


class H(tl.Dim):
    """rows of a plane"""


class W(tl.Dim):
    """columns of a plane"""


class C(tl.Dim):
    """channels"""


class O(tl.Dim):  # noqa: E742  the usual name of output channels
    """channels of the result"""


class R(tl.Dim):
    """rows of a filter"""


class S(tl.Dim):
    """columns of a filter"""


class Q(tl.Dim):
    """positions of the result, of all samples"""


@tl.function
def source(i: tl.Tile, tap: int, down: tl.Tile, up: tl.Tile | int, direction: tl.Tile | int, offset: tl.Tile) -> tl.Tile:
    """The row or column of the plane that a row or column of a result takes with a tap of the filter, or -1."""
    t = i * down + offset + tap * direction
    return tl.where(t % up == 0, t // up, -1)


@tl.function
def pixels(
    x: tl.Tensor, place: tl.Tile, rows: tl.Tile, columns: tl.Tile, r: int, s: int, part: int, down: tl.Tile,
    up: tl.Tile | int, direction: tl.Tile | int, offset: tl.Tile, BK: int,
) -> tl.Tile:  # fmt: skip
    """BK channels of the pixels that positions of a result take with a tap of the filter; 0 where there are none."""
    rest = place % (rows * columns)
    h = source(tl.minimum(tl.maximum(rest // columns, 0), MOST), r, down, up, direction, offset)
    w = source(rest % columns, s, down, up, direction, offset)
    channel = part * BK + tl.arange(BK)
    return tl.gather(x, ((place // (rows * columns))[:, None], h[:, None], w[:, None], channel[None, :]), pad=0)
