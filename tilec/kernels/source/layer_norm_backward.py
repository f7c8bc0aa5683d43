"""Gradient of the layer norm of each row, and of its weight and bias for each stripe of rows."""

from typing import Literal

import tilec as tl


class E(tl.Element):
    """bf16, f16 or f32"""


class T(tl.Dim):
    """number of rows"""


class N(tl.Dim):
    """elements of a row"""


class P(tl.Dim):
    """stripes of rows"""


@tl.function
def row(x: tl.Tensor, i: int, BLOCK: int) -> tl.Tile:
    """Row `i`, or zeros after the last one."""
    return tl.load(x, (i, 0), shape=(1, BLOCK), pad=0)


@tl.function
def of_row(x: tl.Tensor, i: int) -> tl.Tile:
    """The number of row `i`, or of the last one."""
    return tl.load(x, tl.minimum(i, T - 1))


@tl.kernel
def layer_norm_backward(
    dout: tl.In[E, T, N],
    x: tl.In[E, T, N],
    weight: tl.In[E, N],
    mean: tl.In[tl.f32, T],
    rstd: tl.In[tl.f32, T],
    dx: tl.Out[E, T, N],
    partial: tl.Out[tl.f32, P, Literal[2], N],
    *,
    E: tl.Const,
    BLOCK: tl.Const,
    AHEAD: tl.Const,
    MULTIPLE: tl.Const,
):
    """With `y = (x - mean) * rstd` and `dy = dout * weight`, `dx[t] = rstd[t] * (dy - mean(dy) - y * mean(dy * y))`.

    Block `p` computes rows p, p + P, p + 2 P and so on; `partial[p, 0]` is its sum of `dout * y`, and `partial[p, 1]` that of
    `dout`. In f32; `dx` is rounded once. With AHEAD, a row is loaded two iterations before it is needed."""
    tl.requires(N <= BLOCK)
    tl.requires(N % MULTIPLE == 0)
    tl.requires(T <= 1073741824 and P <= 65536)
    tl.grid(P)
    p, stride = tl.bid(0), tl.num_blocks(0)
    share = 1.0 / tl.f32(N)
    w = tl.load(weight, 0, shape=BLOCK, pad=0)[None, :]
    of_weight = tl.zeros((1, BLOCK), tl.f32)
    of_bias = tl.zeros((1, BLOCK), tl.f32)
    x1, d1, mean1, rstd1 = row(x, p, BLOCK), row(dout, p, BLOCK), of_row(mean, p), of_row(rstd, p)
    i2 = p + stride
    x2, d2, mean2, rstd2 = row(x, i2, BLOCK), row(dout, i2, BLOCK), of_row(mean, i2), of_row(rstd, i2)
    for i in range(p, T, stride):
        if AHEAD:
            scale, y, d = rstd1, (x1.astype(tl.f32) - mean1) * rstd1, d1.astype(tl.f32)
            x1, d1, mean1, rstd1 = x2, d2, mean2, rstd2
            i2 = i + 2 * stride
            x2, d2, mean2, rstd2 = row(x, i2, BLOCK), row(dout, i2, BLOCK), of_row(mean, i2), of_row(rstd, i2)
        else:
            scale = tl.load(rstd, i)
            y, d = (row(x, i, BLOCK).astype(tl.f32) - tl.load(mean, i)) * scale, row(dout, i, BLOCK).astype(tl.f32)
        of_weight = of_weight + d * y
        of_bias = of_bias + d
        dy = d * w.astype(tl.f32)
        first = tl.sum(dy) * share
        second = tl.sum(dy * y) * share
        tl.store(dx, (i, 0), ((dy - first - y * second) * scale).astype(E), mask=True)
    tl.store(partial, (p, 0, 0), of_weight[None, :, :], mask=True)
    tl.store(partial, (p, 1, 0), of_bias[None, :, :], mask=True)
