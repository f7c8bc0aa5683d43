"""What the kernels of sorts share: rows, and the keys by which they are sorted, integers in the order of floats."""

import tilec as tl

LOW_BITS = 0x7FFFFFFF
LAST = 0x7FFFFFFF


class E(tl.Element):
    """bf16, f16 or f32"""


class T(tl.Dim):
    """number of rows"""


class N(tl.Dim):
    """elements of a row"""


@tl.function
def key_of(v: tl.Tile, descending: tl.i32 | int) -> tl.Tile:
    """i32 keys of a tile of f32: -inf is the lowest, -0 is below 0, and each NaN is `LAST`. With descending 1, not 0, in the
    opposite order."""
    bits = tl.bitcast(v, tl.i32)
    return tl.where(v != v, LAST, bits ^ ((bits >> 31) & LOW_BITS)) ^ (0 - descending)


@tl.function
def of_key(key: tl.Tile, descending: tl.i32) -> tl.Tile:
    """The f32 of a key."""
    bits = key ^ (0 - descending)
    return tl.bitcast(bits ^ ((bits >> 31) & LOW_BITS), tl.f32)


@tl.function
def sorted_tile(x: tl.Tensor, rows: int, tile: int, descending: tl.i32, ROWS: int, BLOCK: int) -> tuple[tl.Tile, tl.Tile]:
    """Keys and columns of a tile of rows in the order of keys; those after the end of a row are last."""
    v = tl.load(x, (rows, tile), shape=(ROWS, BLOCK), pad=0).astype(tl.f32)
    columns = tl.broadcast_to((tile * BLOCK + tl.arange(BLOCK))[None, :], (ROWS, BLOCK))
    return tl.sort((tl.where(columns < N, key_of(v, descending), LAST), columns), 1)
