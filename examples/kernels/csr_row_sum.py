"""Sum of each row of a sparse matrix in CSR form."""

from typing import Literal

import tilec
from tilec import (
    Const,
    Dim,
    In,
    Out,
    arange,
    bid,
    cdiv,
    f32,
    gather,
    grid,
    i32,
    load,
    max,
    requires,
    store,
    sum,
    values,
    where,
    zeros,
)


class R(Dim):
    """rows"""


class N(Dim):
    """elements that are stored"""


@tilec.kernel
def csr_row_sum(x: In[f32, N], starts: In[i32, Literal["R + 1"]], out: Out[f32, R], *, ROWS: Const, LANES: Const, DEPTH: Const):
    """`out[r] = sum(x[starts[r] : starts[r + 1]])`; a block has ROWS rows and reads DEPTH * LANES elements of each at once.

    Past the end of a row nothing is read: position N lies outside of `x` and counts 0."""
    requires(N <= 1073741824)
    grid(cdiv(R, ROWS))
    values(starts, 0, N + 1, sorted=True, ends=True)
    r = bid(0)
    begin = load(starts, offset=r * ROWS, shape=ROWS, pad=0)
    end = load(starts, offset=r * ROWS + 1, shape=ROWS, pad=0)
    first = begin[None, :] + arange(LANES)[:, None]
    steps = (arange(DEPTH) * LANES)[:, None, None]
    total = zeros((LANES, ROWS), f32)
    for j in range(cdiv(max(end - begin), DEPTH * LANES)):
        at = (first + j * (DEPTH * LANES))[None, :, :] + steps
        total = total + sum(gather(x, where(at < end[None, None, :], at, N), pad=0), axis=0)
    store(out, r, sum(total, axis=0), mask=True)
