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


class HO(tl.Dim):
    """rows of the result"""


class WO(tl.Dim):
    """columns of the result"""


class D(tl.Dim):
    """the stride, by which the rows and columns of a plane are split"""


class X(tl.Dim):
    """channels of D adjacent pixels"""


class T(tl.Dim):
    """positions of the boxes of a result"""


class P(tl.Dim):
    """stripes of positions"""


@tl.function
def within(i: tl.Scalar, limit: int) -> tl.Scalar:
    """A number that is from 0 to below `limit`, clamped for the prover."""
    return min(max(i, 0), limit - 1)


@tl.function
def shift(distance: tl.Scalar, stride: tl.Scalar) -> tuple[tl.Scalar, tl.Scalar]:
    """A distance of at most 32768 pixels in strides of at most 64, rounded down, and the rest."""
    positive = distance + stride * 32768
    return within(positive // stride, 65536) - 32768, within(positive % stride, 64)


@tl.function
def source(i: tl.Tile, tap: int, down: tl.Tile, up: tl.Tile | int, direction: tl.Tile | int, offset: tl.Tile) -> tl.Tile:
    """The row or column of the plane that a row or column of a result takes with a tap of the filter, or -1."""
    t = i * down + offset + tap * direction
    return tl.where(t % up == 0, t // up, -1)


@tl.function
def pixels(
    x: tl.Tensor, index: tl.Tile, rows: tl.Tile, columns: tl.Tile, r: int, s: int, part: int, down: tl.Tile,
    up: tl.Tile | int, direction: tl.Tile | int, offset: tl.Tile, BK: int,
) -> tl.Tile:  # fmt: skip
    """BK channels of the pixels that positions of a result take with a tap of the filter; 0 where there are none."""
    rest = index % (rows * columns)
    h = source(tl.minimum(tl.maximum(rest // columns, 0), MOST), r, down, up, direction, offset)
    w = source(rest % columns, s, down, up, direction, offset)
    channel = part * BK + tl.arange(BK)
    return tl.gather(x, ((index // (rows * columns))[:, None], h[:, None], w[:, None], channel[None, :]), pad=0)
