"""A step of the Lion optimizer: bf16 parameters, f32 momentum, in place."""

import tilec as tl


class G(tl.Element):
    """dtype of gradients"""


class N(tl.Dim):
    """parameters"""


@tl.function
def sign(x):
    return tl.where(x > 0, 1.0, tl.where(x < 0, -1.0, 0.0))


@tl.kernel
def lion(
    param: tl.InOut[tl.bf16, N],
    momentum: tl.InOut[tl.f32, N],
    grad: tl.In[G, N],
    lr: tl.f32,
    beta1: tl.f32,
    beta2: tl.f32,
    decay: tl.f32,
    *,
    G: tl.Const,
    BLOCK: tl.Const,
):
    tl.grid(tl.cdiv(N, BLOCK))
    i = tl.bid(0)
    p = tl.load(param, i, shape=BLOCK, pad=0).astype(tl.f32)
    m = tl.load(momentum, i, shape=BLOCK, pad=0)
    g = tl.load(grad, i, shape=BLOCK, pad=0).astype(tl.f32)
    update = sign(beta1 * m + (1 - beta1) * g) + decay * p
    tl.store(param, i, (p - lr * update).astype(tl.bf16), mask=True)
    tl.store(momentum, i, beta2 * m + (1 - beta2) * g, mask=True)
