"""Tiles of the numbers of rows in order: the first step of a merge sort."""

import tilec as tl

LAST = 0x7FFFFFFF


class L(tl.Element):
    """i32 or i64"""


class T(tl.Dim):
    """1"""


class N(tl.Dim):
    """numbers"""


@tl.kernel
def sort_numbers(
    ids: tl.In[L, T, N],
    keys: tl.Out[tl.i32, T, N],
    positions: tl.Out[tl.i32, T, N],
    *,
    L: tl.Const,
    BLOCK: tl.Const,
):
    """Sort each tile of BLOCK numbers, as `sort_tiles` does; those that are not from 0 to below `LAST` become `LAST`."""
    tl.requires(N <= 1073741824)
    tl.grid(tl.cdiv(N, BLOCK), T)
    tile, row = tl.bid(0), tl.bid(1)
    number = tl.load(ids, (row, tile), shape=(1, BLOCK), pad=-1)
    key = tl.where((number >= 0) & (number < LAST), number, LAST).astype(tl.i32)
    found, where_found = tl.sort((key, (tile * BLOCK + tl.arange(BLOCK))[None, :]), 1)
    tl.store(keys, (row, tile), found, mask=True)
    tl.store(positions, (row, tile), where_found, mask=True)
