"""Tiles of rows in order: the first step of a merge sort."""

from order import E, N, T, sorted_tile

import tilec as tl


@tl.kernel
def sort_tiles(
    x: tl.In[E, T, N],
    keys: tl.Out[tl.i32, T, N],
    positions: tl.Out[tl.i32, T, N],
    descending: tl.i32,
    *,
    E: tl.Const,
    BLOCK: tl.Const,
    MULTIPLE: tl.Const,
):
    """Sort each tile of BLOCK elements of a row: `keys` are those of `order.py`, and `positions` say where elements were."""
    tl.requires(N <= 1073741824 and N % MULTIPLE == 0)
    tiles = tl.cdiv(N, BLOCK)
    tl.requires(descending == 0 or descending == 1)
    tl.grid(tiles * T)
    row, tile = tl.bid(0) // tiles, tl.bid(0) % tiles
    found, columns = sorted_tile(x, row, tile, descending, 1, BLOCK)
    tl.store(keys, (row, tile), found, mask=True)
    tl.store(positions, (row, tile), columns, mask=True)
