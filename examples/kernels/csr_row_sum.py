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
    minimum,
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
def csr_row_sum(x: In[f32, N], starts: In[i32, Literal["R + 1"]], out: Out[f32, R], *, ROWS: Const, LANES: Const):
    """`out[r] = sum(x[starts[r] : starts[r + 1]])`; a block has ROWS rows and reads LANES elements of each at once.

    What it reads behind the end of a row counts 0, and behind the last element it reads that one again."""
    requires(N <= 1073741824)
    grid(cdiv(R, ROWS))
    values(starts, 0, N + 1, sorted=True, ends=True)
    r = bid(0)
    begin = load(starts, offset=r * ROWS, shape=ROWS, pad=0)
    end = load(starts, offset=r * ROWS + 1, shape=ROWS, pad=0)
    first = begin[None, :] + arange(LANES)[:, None]
    total = zeros((LANES, ROWS), f32)
    for j in range(cdiv(max(end - begin), LANES)):
        at = first + j * LANES
        total = total + where(at < end[None, :], gather(x, minimum(at, N - 1)), 0)
    store(out, r, sum(total, axis=0), mask=True)
