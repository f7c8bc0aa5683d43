"""A step of AdamW (Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019), in place."""

import tilec as tl


class E(tl.Element):
    """f32 or bf16"""


class G(tl.Element):
    """f32 or bf16"""


class N(tl.Dim):
    """number of elements"""


@tl.kernel
def adamw(
    p: tl.InOut[E, N],
    grad: tl.In[G, N],
    m: tl.InOut[tl.f32, N],
    v: tl.InOut[tl.f32, N],
    weight1: tl.f32,
    weight2: tl.f32,
    keep: tl.f32,
    step_size: tl.f32,
    scale: tl.f32,
    eps: tl.f32,
    *,
    E: tl.Const,
    G: tl.Const,
    BLOCK: tl.Const,
):
    """Move the means m and v of gradient and squared gradient by weight1 and weight2, `1 - beta` each, toward it; then
    `p = keep * p - step_size * m / (scale * sqrt(v) + eps)`, in f32, rounded once.

    keep: `1 - lr * weight_decay`. step_size, scale: `lr / (1 - beta1 ** step)` and `(1 - beta2 ** step) ** -0.5`. They come in
    this form because `1 - beta` of a beta rounded to f32 has few correct digits."""
    tl.grid(tl.cdiv(N, BLOCK))
    i = tl.bid(0)
    g = tl.load(grad, i, shape=BLOCK, pad=0).astype(tl.f32)
    mean = tl.load(m, i, shape=BLOCK, pad=0)
    square = tl.load(v, i, shape=BLOCK, pad=0)
    mean = mean + (g - mean) * weight1
    square = square + (g * g - square) * weight2
    old = tl.load(p, i, shape=BLOCK, pad=0).astype(tl.f32)
    tl.store(p, i, (old * keep - step_size * (mean / (tl.sqrt(square) * scale + eps))).astype(E), mask=True)
    tl.store(m, i, mean, mask=True)
    tl.store(v, i, square, mask=True)
