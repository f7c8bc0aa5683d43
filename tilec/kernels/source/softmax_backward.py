"""Gradient of the softmax of each row."""

import tilec as tl


class E(tl.Element):
    """bf16, f16 or f32"""


class T(tl.Dim):
    """number of rows"""


class N(tl.Dim):
    """elements of a row"""


@tl.kernel
def softmax_backward(
    dout: tl.In[E, T, N],
    out: tl.In[E, T, N],
    dx: tl.Out[E, T, N],
    *,
    E: tl.Const,
    ROWS: tl.Const,
    BLOCK: tl.Const,
    MULTIPLE: tl.Const,
):
    """`dx[t] = out[t] * (dout[t] - sum(dout[t] * out[t]))`, in f32, rounded once; `out` is the softmax.

    A block computes ROWS rows of at most BLOCK elements."""
    tl.requires(N <= BLOCK)
    tl.requires(N % MULTIPLE == 0)
    tl.grid(tl.cdiv(T, ROWS))
    rows = tl.bid(0)
    y = tl.load(out, (rows, 0), shape=(ROWS, BLOCK), pad=0).astype(tl.f32)
    dy = tl.load(dout, (rows, 0), shape=(ROWS, BLOCK), pad=0).astype(tl.f32)
    total = tl.sum(dy * y, axis=1)
    tl.store(dx, (rows, 0), (y * (dy - total[:, None])).astype(E), mask=True)
