"""Focal loss of softmax classification, and its gradient."""

import tilec as tl


class E(tl.Element):
    """bf16, f16 or f32"""


class T(tl.Dim):
    """samples"""


class V(tl.Dim):
    """classes"""


@tl.kernel
def focal_loss(
    logits: tl.In[E, T, V],
    labels: tl.In[tl.i32, T],
    alpha: tl.In[tl.f32, V],
    loss: tl.Out[tl.f32, T],
    grad: tl.Out[E, T, V],
    gamma: tl.f32,
    *,
    E: tl.Const,
    V: tl.Const,
    ROWS: tl.Const,
):
    """`loss = -alpha[label] * (1 - p) ** gamma * log(p)`, `p = softmax(logits)[label]`; `gamma` is at least 1."""
    tl.grid(tl.cdiv(T, ROWS))
    tl.values(labels, 0, V)
    i = tl.bid(0)
    x = tl.load(logits, (i, 0), shape=(ROWS, V), pad=0).astype(tl.f32)
    label = tl.load(labels, i, shape=ROWS, pad=0)
    a = tl.gather(alpha, label)
    chosen = tl.arange(V)[None, :] == label[:, None]
    shifted = x - tl.max(x, axis=1, keepdims=True)
    e = tl.exp(shifted)
    total = tl.sum(e, axis=1)
    p = e / total[:, None]
    logp = tl.sum(tl.where(chosen, shifted, 0), axis=1) - tl.log(total)
    pt = tl.exp(logp)
    rest = tl.sum(tl.where(chosen, 0, p), axis=1)
    power = tl.pow(rest, gamma - 1)
    tl.store(loss, i, -a * power * rest * logp, mask=True)
    slope = a * power * (gamma * pt * logp - rest)
    hot = tl.where(chosen, rest[:, None], -p)
    tl.store(grad, (i, 0), (slope[:, None] * hot).astype(E), mask=True)
