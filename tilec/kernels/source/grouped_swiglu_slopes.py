"""Gradient of `silu(gate) * up` with respect to both, next to each other in rows."""

from typing import Literal

from grouped_parts import E, N, T

import tilec as tl


@tl.kernel
def grouped_swiglu_slopes(
    both: tl.In[E, T, Literal["2 * N"]],
    dout: tl.In[E, T, N],
    slopes: tl.Out[E, T, Literal["2 * N"]],
    *,
    E: tl.Const,
    ROWS: tl.Const,
    BLOCK: tl.Const,
):
    """Columns below N of `both` are gate, the others up; of `slopes` their gradients, rounded once."""
    tl.requires(N % 8 == 0, T <= 16777216)
    columns = tl.cdiv(N, BLOCK)
    tl.grid(tl.cdiv(T, ROWS) * columns)
    tl.requires(tl.cdiv(T, ROWS) * columns <= 2147483647)
    i, j = tl.bid(0) // columns, tl.bid(0) % columns
    gate = tl.load(both, (i, j), shape=(ROWS, BLOCK), pad=0).astype(tl.f32)
    up = tl.load(both, offset=(i * ROWS, N + j * BLOCK), shape=(ROWS, BLOCK), pad=0).astype(tl.f32)
    grad = tl.load(dout, (i, j), shape=(ROWS, BLOCK), pad=0).astype(tl.f32)
    share = tl.sigmoid(gate)
    of_gate = grad * up * share * (1.0 + gate * (1.0 - share))
    row = (i * ROWS + tl.arange(ROWS))[:, None]
    column = (j * BLOCK + tl.arange(BLOCK))[None, :]
    inside = tl.where(column < N, row, T)
    tl.scatter(slopes, (inside, column), of_gate.astype(E), mask=True)
    tl.scatter(slopes, (inside, N + column), (grad * gate * share).astype(E), mask=True)
