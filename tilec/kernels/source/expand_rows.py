"""A row for each choice of an expert, in the order of experts: that of its token times a weight."""

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
def expand_rows(
    x: tl.In[E, T, H],
    weights: tl.In[W, T, K],
    order: tl.In[tl.i32, N],
    slots: tl.In[tl.i32, T, K],
    out: tl.Out[E, N, H],
    *,
    E: tl.Const,
    W: tl.Const,
    BLOCK: tl.Const,
    MULTIPLE: tl.Const,
):
    """`out[i] = weights[t, j] * x[t]` of choice `order[i] = t * K + j`, in f32, rounded once; 0 for one that does not exist. A
    block writes BLOCK elements of a row. `slots` is for the gradient."""
    tl.requires(H % MULTIPLE == 0 and T * K == N)
    tl.grid(N, tl.cdiv(H, BLOCK))
    i, part = tl.bid(0), tl.bid(1)
    choice = tl.load(order, i)
    token = choice // K
    weight = tl.load(weights, (token, choice % K), pad=0).astype(tl.f32)
    v = tl.load(x, (token, part), shape=(1, BLOCK), pad=0).astype(tl.f32)
    tl.store(out, (i, part), (v * weight).astype(E), mask=True)
