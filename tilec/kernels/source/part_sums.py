"""Sums of parts of rows: the first step of a scan of long rows."""

import tilec as tl


class E(tl.Element):
    """bf16, f16 or f32"""


class T(tl.Dim):
    """number of rows"""


class N(tl.Dim):
    """elements of a row"""


class S(tl.Dim):
    """parts of a row"""


@tl.kernel
def part_sums(
    x: tl.In[E, T, N], sums: tl.Out[tl.f32, T, S], *, E: tl.Const, TILES: tl.Const, BLOCK: tl.Const, MULTIPLE: tl.Const
):
    """`sums[t, s]` is the sum of part s of row t, TILES tiles of BLOCK elements, in f32."""
    tl.requires(N % MULTIPLE == 0 and tl.cdiv(N, TILES * BLOCK) == S)
    tl.grid(T, S)
    row, part = tl.bid(0), tl.bid(1)
    total = tl.zeros((1, BLOCK), tl.f32)
    for j in range(TILES):
        total = total + tl.load(x, (row, part * TILES + j), shape=(1, BLOCK), pad=0).astype(tl.f32)
    tl.store(sums, (row, part), tl.sum(total))
