"""Sum of each row of a sparse matrix in CSR form."""

from typing import Literal

import tilec as tl


class R(tl.Dim):
    """rows"""


class N(tl.Dim):
    """elements that are stored"""


@tl.kernel
def csr_row_sum(
    x: tl.In[tl.f32, N],
    starts: tl.In[tl.i32, Literal["R + 1"]],
    out: tl.Out[tl.f32, R],
    *,
    ROWS: tl.Const,
    LANES: tl.Const,
    DEPTH: tl.Const,
):
    """`out[r] = sum(x[starts[r] : starts[r + 1]])`; a block has ROWS rows and reads DEPTH * LANES elements of each at once.

    Past the end of a row nothing is read: position N lies outside of `x` and counts 0."""
    tl.requires(N <= 1073741824)
    tl.grid(tl.cdiv(R, ROWS))
    tl.values(starts, 0, N + 1, sorted=True, ends=True)
    r = tl.bid(0)
    begin = tl.load(starts, offset=r * ROWS, shape=ROWS, pad=0)
    end = tl.load(starts, offset=r * ROWS + 1, shape=ROWS, pad=0)
    first = begin[None, :] + tl.arange(LANES)[:, None]
    steps = (tl.arange(DEPTH) * LANES)[:, None, None]
    total = tl.zeros((LANES, ROWS), tl.f32)
    for j in range(tl.cdiv(tl.max(end - begin), DEPTH * LANES)):
        at = (first + j * (DEPTH * LANES))[None, :, :] + steps
        total = total + tl.sum(tl.gather(x, tl.where(at < end[None, None, :], at, N), pad=0), axis=0)
    tl.store(out, r, tl.sum(total, axis=0), mask=True)
