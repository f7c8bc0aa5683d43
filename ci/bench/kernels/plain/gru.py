"""A GRU over a sequence; one block has one sequence of the batch."""

from typing import Literal

import tilec as tl


class E(tl.Element):
    """bf16 or f16"""


class B(tl.Dim):
    """sequences"""


class T(tl.Dim):
    """steps"""


class I(tl.Dim):
    """inputs"""


class H(tl.Dim):
    """hidden units"""


@tl.function
def gate(w, b, g, v, rows, columns):
    """`w[g * rows : (g + 1) * rows] @ v + b[...]`"""
    weights = tl.load(w, (g, 0), shape=(rows, columns)).astype(tl.f32)
    return tl.sum(weights * v[None, :], axis=1) + tl.load(b, g, shape=rows)


@tl.kernel
def gru(
    x: tl.In[E, B, T, I],
    h0: tl.In[tl.f32, B, H],
    w_ih: tl.In[E, Literal["3 * H"], I],
    w_hh: tl.In[E, Literal["3 * H"], H],
    b_ih: tl.In[tl.f32, Literal["3 * H"]],
    b_hh: tl.In[tl.f32, Literal["3 * H"]],
    out: tl.Out[E, B, T, H],
    last: tl.Out[tl.f32, B, H],
    *,
    E: tl.Const,
    I: tl.Const,
    H: tl.Const,
):
    """As `torch.nn.GRU`: gates r, z, n."""
    tl.grid(B)
    b = tl.bid(0)
    h = tl.load(h0, (b, 0), shape=(1, H)).reshape((H,))
    for t in range(T):
        v = tl.load(x, (b, t, 0), shape=(1, 1, I)).reshape((I,)).astype(tl.f32)
        r = tl.sigmoid(gate(w_ih, b_ih, 0, v, H, I) + gate(w_hh, b_hh, 0, h, H, H))
        z = tl.sigmoid(gate(w_ih, b_ih, 1, v, H, I) + gate(w_hh, b_hh, 1, h, H, H))
        n = tl.tanh(gate(w_ih, b_ih, 2, v, H, I) + r * gate(w_hh, b_hh, 2, h, H, H))
        h = (1 - z) * n + z * h
        tl.store(out, (b, t, 0), h.astype(E).reshape((1, 1, H)))
    tl.store(last, (b, 0), h[None, :])
