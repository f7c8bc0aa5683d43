"""Gradient of a causal convolution, of that of its sums: of tokens, and of weights and bias for each stripe of tokens."""

from causal_parts import B, D, E, T, W, tap, tokens

import tilec as tl


class P(tl.Dim):
    """stripes of tokens"""


@tl.kernel
def causal_conv1d_backward(
    dy: tl.In[tl.f32, B, T, D],
    x: tl.In[E, B, T, D],
    weight: tl.In[E, D, W],
    dx: tl.Out[E, B, T, D],
    dweight: tl.Out[tl.f32, P, W, D],
    dbias: tl.Out[tl.f32, P, D],
    *,
    E: tl.Const,
    W: tl.Const,
    BT: tl.Const,
    BD: tl.Const,
    MULTIPLE: tl.Const,
):
    """`dx[b, t, d] = sum(weight[d, k] * dy[b, t + (W - 1) - k, d] for k in range(W))`, in f32, rounded once.

    Block (d, p) takes tiles p, p + P and so on of BT tokens, of all sequences. `dweight[p, k, d]` is its sum of
    `dy[b, t, d] * x[b, t + k - (W - 1), d]`, and `dbias[p, d]` that of `dy[b, t, d]`."""
    assert W == 4
    tl.requires(D % MULTIPLE == 0 and B * T <= 1073741824 and P <= 65535)
    tiles = tl.cdiv(T, BT)
    tl.grid(tl.cdiv(D, BD), P)
    d, p = tl.bid(0), tl.bid(1)
    of_bias, of_0, of_1 = tl.zeros((BT, BD), tl.f32), tl.zeros((BT, BD), tl.f32), tl.zeros((BT, BD), tl.f32)
    of_2, of_3 = tl.zeros((BT, BD), tl.f32), tl.zeros((BT, BD), tl.f32)
    for j in range(p, B * tiles, P):
        b, t = j // tiles, j % tiles * BT
        slope = tokens(dy, b, t, d, BT, BD)
        of_bias = of_bias + slope
        of_0 = of_0 + slope * tokens(x, b, t - 3, d, BT, BD)
        of_1 = of_1 + slope * tokens(x, b, t - 2, d, BT, BD)
        of_2 = of_2 + slope * tokens(x, b, t - 1, d, BT, BD)
        of_3 = of_3 + slope * tokens(x, b, t, d, BT, BD)
        total = slope * tap(weight, d, 3, BD)
        for k in range(W - 1):
            total = total + tokens(dy, b, t + (W - 1) - k, d, BT, BD) * tap(weight, d, k, BD)
        tl.store(dx, (b, j % tiles, d), total.astype(E)[None, :, :], mask=True)
    tl.store(dbias, (p, d), tl.sum(of_bias, axis=0)[None, :], mask=True)
    tl.store(dweight, (p, 0, d), tl.sum(of_0, axis=0)[None, None, :], mask=True)
    tl.store(dweight, (p, 1, d), tl.sum(of_1, axis=0)[None, None, :], mask=True)
    tl.store(dweight, (p, 2, d), tl.sum(of_2, axis=0)[None, None, :], mask=True)
    tl.store(dweight, (p, 3, d), tl.sum(of_3, axis=0)[None, None, :], mask=True)
