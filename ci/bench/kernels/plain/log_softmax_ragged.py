"""Log softmax of ragged rows: row `r` is `x[starts[r] : starts[r + 1]]`."""

from typing import Literal

import tilec as tl


class E(tl.Element):
    """bf16, f16 or f32"""


class R(tl.Dim):
    """rows"""


class N(tl.Dim):
    """elements of all rows"""


@tl.kernel
def log_softmax_ragged(
    x: tl.In[E, N],
    starts: tl.In[tl.i32, Literal["R + 1"]],
    out: tl.Out[E, N],
    *,
    E: tl.Const,
    BLOCK: tl.Const,
):
    tl.requires(N <= 1073741824)
    tl.grid(R)
    tl.values(starts, 0, N + 1, sorted=True, ends=True)
    r = tl.bid(0)
    begin, end = tl.load(starts, r), tl.load(starts, r + 1)
    steps = tl.cdiv(end - begin, BLOCK)
    top = tl.full((BLOCK,), -tl.inf, tl.f32)
    for j in range(steps):
        at = begin + j * BLOCK + tl.arange(BLOCK)
        v = tl.gather(x, tl.where(at < end, at, N), pad=-tl.inf).astype(tl.f32)
        top = tl.maximum(top, v)
    high = tl.max(top)
    total = tl.zeros((BLOCK,), tl.f32)
    for j in range(steps):
        at = begin + j * BLOCK + tl.arange(BLOCK)
        v = tl.gather(x, tl.where(at < end, at, N), pad=-tl.inf).astype(tl.f32)
        total += tl.exp(v - high)
    shift = high + tl.log(tl.sum(total))
    for j in range(steps):
        at = begin + j * BLOCK + tl.arange(BLOCK)
        index = tl.where(at < end, at, N)
        v = tl.gather(x, index, pad=0).astype(tl.f32)
        tl.scatter(out, index, (v - shift).astype(E), mask=True)
