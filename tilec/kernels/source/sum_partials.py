"""Sums of columns, such as those of the gradient of a weight over stripes of rows."""

import tilec as tl


class E(tl.Element):
    """bf16, f16 or f32"""


class P(tl.Dim):
    """number of rows"""


class N(tl.Dim):
    """columns"""


@tl.kernel
def sum_partials(
    partial: tl.In[tl.f32, P, N], out: tl.Out[E, N], *, E: tl.Const, ROWS: tl.Const, BLOCK: tl.Const, MULTIPLE: tl.Const
):
    """`out = sum(partial, axis=0)`, in f32, in the same order at every launch; rounded once."""
    tl.requires(N % MULTIPLE == 0)
    tl.grid(tl.cdiv(N, BLOCK))
    column = tl.bid(0)
    total = tl.zeros((ROWS, BLOCK), tl.f32)
    for i in range(tl.cdiv(P, ROWS)):
        total = total + tl.load(partial, (i, column), shape=(ROWS, BLOCK), pad=0)
    tl.store(out, column, tl.sum(total, axis=0).astype(E), mask=True)
