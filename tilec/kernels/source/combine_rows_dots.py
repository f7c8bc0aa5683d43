"""Gradient of the weights with which rows are combined."""

import tilec as tl


class E(tl.Element):
    """bf16, f16 or f32"""


class W(tl.Element):
    """bf16, f16 or f32"""


class T(tl.Dim):
    """tokens"""


class K(tl.Dim):
    """experts of a token"""


class N(tl.Dim):
    """choices of experts"""


class H(tl.Dim):
    """elements of a row"""


@tl.kernel
def combine_rows_dots(
    dout: tl.In[E, T, H],
    y: tl.In[E, N, H],
    weights: tl.In[W, T, K],
    slots: tl.In[tl.i32, T, K],
    dweights: tl.Out[W, T, K],
    *,
    E: tl.Const,
    W: tl.Const,
    BLOCK: tl.Const,
    MULTIPLE: tl.Const,
):
    """`dweights[t, j] = sum(dout[t] * y[slots[t, j]])`, in f32, rounded once to the dtype of `weights`; a block takes a token,
    BLOCK elements at a time."""
    tl.requires(H % MULTIPLE == 0 and T * K == N)
    tl.grid(T)
    t = tl.bid(0)
    for j in range(K):
        slot = tl.load(slots, (t, j))
        total = tl.zeros((1, BLOCK), tl.f32)
        for part in range(tl.cdiv(H, BLOCK)):
            v = tl.load(y, (slot, part), shape=(1, BLOCK), pad=0).astype(tl.f32)
            total = total + v * tl.load(dout, (t, part), shape=(1, BLOCK), pad=0).astype(tl.f32)
        tl.store(dweights, (t, j), tl.sum(total).astype(W))
