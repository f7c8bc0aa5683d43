"""Cross entropy of several heads, with label smoothing and a label that is ignored."""

import tilec as tl


class E(tl.Element):
    """bf16 or f16"""


class T(tl.Dim):
    """tokens"""


class H(tl.Dim):
    """heads"""


class V(tl.Dim):
    """classes"""


@tl.kernel
def smooth_ce(
    logits: tl.In[E, T, H, V],
    labels: tl.In[tl.i32, T, H],
    loss: tl.Out[tl.f32, T, H],
    smoothing: tl.f32,
    ignore: tl.i32,
    *,
    E: tl.Const,
    BLOCK: tl.Const,
):
    tl.grid(T, H)
    t, h = tl.bid(0), tl.bid(1)
    label = tl.load(labels, (t, h))
    high = tl.full((1, 1), -tl.inf, tl.f32)
    weight = tl.zeros((1, 1), tl.f32)
    total = tl.zeros((1, 1, BLOCK), tl.f32)
    for j in range(tl.cdiv(V, BLOCK)):
        x = tl.load(logits, (t, h, j), shape=(1, 1, BLOCK), pad=0).astype(tl.f32)
        inside = (j * BLOCK + tl.arange(BLOCK))[None, None, :] < V
        total = total + x
        x = tl.where(inside, x, -tl.inf)
        higher = tl.maximum(high, tl.max(x, axis=2))
        weight = weight * tl.exp(high - higher) + tl.sum(tl.exp(x - higher[:, :, None]), axis=2)
        high = higher
    lse = tl.sum(high + tl.log(weight))
    chosen = tl.load(logits, (t, h, label), pad=0).astype(tl.f32)
    mean = tl.sum(total) / tl.f32(V)
    value = (1.0 - smoothing) * (lse - chosen) + smoothing * (lse - mean)
    tl.store(loss, (t, h), tl.where(label == ignore, 0.0, value))
