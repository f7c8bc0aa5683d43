"""Sums of all elements of a long row up to each, from the sums of parts of it."""

import tilec as tl


class E(tl.Element):
    """bf16, f16 or f32"""


class T(tl.Dim):
    """number of rows"""


class N(tl.Dim):
    """elements of a row"""


class S(tl.Dim):
    """parts of a row"""


@tl.function
def sum_of_earlier(sums: tl.Tensor, row: int, part: int, REVERSE: int, PARTS: int) -> tl.Tile:
    """The sum of the parts of a row that come before a part, or after it with REVERSE."""
    total = tl.zeros((1, PARTS), tl.f32)
    for i in range(tl.cdiv(S, PARTS)):
        parts = (i * PARTS + tl.arange(PARTS))[None, :]
        is_earlier = (parts > part) if REVERSE else (parts < part)
        total = total + tl.where(is_earlier, tl.load(sums, (row, i), shape=(1, PARTS), pad=0), 0)
    return tl.sum(total, axis=1, keepdims=True)


@tl.kernel
def cumsum_parts(
    x: tl.In[E, T, N],
    sums: tl.In[tl.f32, T, S],
    out: tl.Out[E, T, N],
    reverse: tl.i32,
    *,
    E: tl.Const,
    REVERSE: tl.Const,
    TILES: tl.Const,
    PARTS: tl.Const,
    BLOCK: tl.Const,
    MULTIPLE: tl.Const,
):
    """As `cumsum`; a block takes a part of a row, TILES tiles of BLOCK elements, and adds the sums of those before, of which it
    reads PARTS at a time."""
    tl.requires(N % MULTIPLE == 0 and N <= 1073741824 and reverse == REVERSE)
    tl.requires(tl.cdiv(N, TILES * BLOCK) == S)
    tl.grid(T, S)
    row, part = tl.bid(0), tl.bid(1)
    before = sum_of_earlier(sums, row, part, REVERSE, PARTS)
    for j in range(TILES):
        tile = part * TILES + (TILES - 1 - j if REVERSE else j)
        v = tl.load(x, (row, tile), shape=(1, BLOCK), pad=0).astype(tl.f32)
        tl.store(out, (row, tile), (before + tl.cumsum(v, 1, reverse=REVERSE == 1)).astype(E), mask=True)
        before = before + tl.sum(v, axis=1, keepdims=True)
