"""Instance norm over the pixels of each channel of each image, with affine."""

import tilec as tl


class E(tl.Element):
    """bf16, f16 or f32"""


class N(tl.Dim):
    """images"""


class C(tl.Dim):
    """channels"""


class S(tl.Dim):
    """pixels, H * W"""


@tl.kernel
def instance_norm(
    x: tl.In[E, N, C, S],
    weight: tl.In[tl.f32, C],
    bias: tl.In[tl.f32, C],
    out: tl.Out[E, N, C, S],
    eps: tl.f32,
    *,
    E: tl.Const,
    BLOCK: tl.Const,
):
    tl.grid(N, C)
    n, c = tl.bid(0), tl.bid(1)
    total = tl.zeros((1, 1, BLOCK), tl.f32)
    for j in range(tl.cdiv(S, BLOCK)):
        total += tl.load(x, (n, c, j), shape=(1, 1, BLOCK), pad=0).astype(tl.f32)
    mean = tl.sum(total) / tl.f32(S)
    squares = tl.zeros((1, 1, BLOCK), tl.f32)
    for j in range(tl.cdiv(S, BLOCK)):
        v = tl.load(x, (n, c, j), shape=(1, 1, BLOCK), pad=0).astype(tl.f32)
        inside = j * BLOCK + tl.arange(BLOCK) < S
        d = tl.where(inside, v - mean, 0)
        squares += d * d
    rstd = tl.rsqrt(tl.sum(squares) / tl.f32(S) + eps)
    scale = rstd * tl.load(weight, c)
    shift = tl.load(bias, c)
    for j in range(tl.cdiv(S, BLOCK)):
        v = tl.load(x, (n, c, j), shape=(1, 1, BLOCK), pad=0).astype(tl.f32)
        tl.store(out, (n, c, j), ((v - mean) * scale + shift).astype(E), mask=True)
