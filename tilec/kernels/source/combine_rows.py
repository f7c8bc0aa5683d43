"""The weighted sum of the rows of each token, which lie in the order of experts."""

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
def combine_rows(
    y: tl.In[E, N, H],
    weights: tl.In[W, T, K],
    slots: tl.In[tl.i32, T, K],
    order: tl.In[tl.i32, N],
    out: tl.Out[E, T, H],
    *,
    E: tl.Const,
    W: tl.Const,
    BLOCK: tl.Const,
    MULTIPLE: tl.Const,
):
    """`out[t] = sum of weights[t, j] * y[slots[t, j]]`, in f32 and in the order of j, rounded once; rows that do not exist are
    0. A block writes BLOCK elements of a row. `order` is for the gradient."""
    tl.requires(H % MULTIPLE == 0 and T * K == N)
    tl.grid(T, tl.cdiv(H, BLOCK))
    t, part = tl.bid(0), tl.bid(1)
    total = tl.zeros((1, BLOCK), tl.f32)
    for j in range(K):
        v = tl.load(y, (tl.load(slots, (t, j)), part), shape=(1, BLOCK), pad=0).astype(tl.f32)
        total = total + v * tl.load(weights, (t, j)).astype(tl.f32)
    tl.store(out, (t, part), total.astype(E), mask=True)
