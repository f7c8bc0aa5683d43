"""What grouped products share: dims, tiles, and the rows that a tile stores."""

import tilec as tl

ROWS = 16
"""Rows of a tile of `group_tiles`."""
TILE = 128
"""Rows of a tile of `group_blocks`."""
LIMIT = 16777216


class E(tl.Element):
    """bf16 or f16"""


class T(tl.Dim):
    """rows of all groups"""


class S(tl.Dim):
    """tiles of all groups and one"""


class X(tl.Dim):
    """groups"""


class N(tl.Dim):
    """outputs"""


class K(tl.Dim):
    """inputs"""


@tl.function
def own_tile(groups: tl.Tensor, starts: tl.Tensor, columns: tl.Scalar, count: tl.Scalar):
    """This block's tile of rows and of columns, `columns` of which are side by side; its group, `count` for rows of none; and
    its first row and that of the next tile."""
    t = tl.bid(0)
    m, n = t // columns, t % columns
    g = min(max(tl.load(groups, m), 0), count)
    begin, end = tl.load(starts, m), tl.load(starts, m + 1)
    return m, n, g, begin, end


@tl.function
def has_rows(m: tl.Scalar, before: tl.Tensor, count: tl.Scalar) -> tl.Scalar:
    """1 if tile `m` of `count` groups and the rows of none has rows, else 0."""
    return min(max(tl.load(before, count + 1), m) - m, 1)


@tl.function
def store_rows(out: tl.Tensor, sums: tl.Tile, begin: tl.Scalar, end: tl.Scalar, column: tl.Scalar, rows: tl.Scalar) -> None:
    """Store a tile's rows from `begin` on, up to `end`, at columns from `column` on. `rows`: of the tensor; a row at `rows` is
    outside of it and skipped. Were there more rows than the tile has, the others would be 0."""
    columns = (column + tl.arange(sums.shape[1]))[None, :]
    row = begin + tl.arange(TILE)
    tl.scatter(out, (tl.where(row < end, row, rows)[:, None], columns), sums, mask=True)
    for j in range(1, tl.cdiv(end - begin, TILE)):
        row = begin + j * TILE + tl.arange(TILE)
        tl.scatter(out, (tl.where(row < end, row, rows)[:, None], columns), tl.zeros(sums.shape, sums.dtype), mask=True)
