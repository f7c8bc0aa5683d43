"""Gradient of a table of which rows were taken."""

from typing import Literal

import tilec as tl

FEW = 8
"""Rows of a run that is added next to others."""


class E(tl.Element):
    """bf16, f16 or f32"""


class N(tl.Dim):
    """rows that were taken"""


class V(tl.Dim):
    """rows of the table"""


class B(tl.Dim):
    """rows of the result"""


class H(tl.Dim):
    """elements of a row"""


@tl.function
def within(start: tl.Tile) -> tl.Tile:
    """A start from 0 to N."""
    return tl.minimum(tl.maximum(start, 0), N)


@tl.function
def part_of(dout: tl.Tensor, scales: tl.Tensor, rows: tl.Tensor, i: tl.Tile, is_inside: tl.Tile, columns: tl.Tile) -> tl.Tile:
    """`scales[b] * dout[b]` at columns, a row for each `b = rows[i]`; 0 where not `is_inside`."""
    row = tl.gather(rows, tl.where(is_inside, i, N), pad=-1)
    scale = tl.gather(scales, row, pad=0)
    return tl.gather(dout, (row, columns), pad=0).astype(tl.f32) * scale


@tl.kernel
def table_gradient(
    dout: tl.In[E, B, H],
    scales: tl.In[tl.f32, B],
    rows: tl.In[tl.i32, N],
    starts: tl.In[tl.i32, Literal["V + 1"]],
    dtable: tl.Out[E, V, H],
    *,
    E: tl.Const,
    ROWS: tl.Const,
    BLOCK: tl.Const,
    MULTIPLE: tl.Const,
):
    """`dtable[v]` is the sum of `scales[b] * dout[b]` over the rows `b = rows[i]`, i from `starts[v]` to below `starts[v + 1]`;
    in f32 and in a fixed order, rounded once.

    A block has BLOCK elements of ROWS rows of the table. It adds runs of at most `FEW` side by side, two of each at a time,
    and longer ones one after the other, ROWS of a run at a time: most rows of a table are taken seldom or never."""
    tl.requires(H % MULTIPLE == 0)
    tl.requires(N <= 1073741824)
    tl.grid(tl.cdiv(V, ROWS), tl.cdiv(H, BLOCK))
    group, part = tl.bid(0), tl.bid(1)
    columns = (part * BLOCK + tl.arange(BLOCK))[None, :]
    # A maximum along columns is where a row's elements are: each thread reads the starts and scales of its own rows alone.
    own = tl.max(tl.broadcast_to(tl.arange(ROWS)[:, None], (ROWS, BLOCK)), axis=1, keepdims=True)
    begin = within(tl.gather(starts, group * ROWS + own, pad=0))
    count = within(tl.gather(starts, group * ROWS + own + 1, pad=0)) - begin
    few, most = tl.where(count <= FEW, count, 0), tl.max(count)
    total = tl.zeros((ROWS, BLOCK), tl.f32)
    for j in range(tl.cdiv(tl.max(few), 2)):
        first = part_of(dout, scales, rows, begin + 2 * j, 2 * j < few, columns)
        second = part_of(dout, scales, rows, begin + 2 * j + 1, 2 * j + 1 < few, columns)
        total = total + first + second
    if most > FEW:
        for r in range(ROWS):
            start = within(tl.load(starts, group * ROWS + r, pad=0))
            end = within(tl.load(starts, group * ROWS + r + 1, pad=0))
            if end - start > FEW:
                run = tl.zeros((ROWS, BLOCK), tl.f32)
                for j in range(tl.cdiv(end - start, ROWS)):
                    i = start + j * ROWS + own
                    run = run + part_of(dout, scales, rows, i, i < end, columns)
                total = tl.where(own == r, tl.sum(run, axis=0)[None, :], total)
    tl.store(dtable, (group, part), total.astype(E), mask=True)
