"""Cross entropy of each token's logits and its label; a label of -1 is ignored."""

import tilec as tl

LOWEST = -3.0e38
LOG2E = 1.4426950408889634
PARTS = 4
WIDTH = 256
LN2 = 0.6931471805599453


class E(tl.Element):
    """bf16, f16 or f32"""


class T(tl.Dim):
    """number of tokens"""


class V(tl.Dim):
    """size of the vocabulary"""


@tl.kernel
def cross_entropy(logits: tl.In[E, T, V], labels: tl.In[tl.i32, T], loss: tl.Out[tl.f32, T], *, E: tl.Const, BLOCK: tl.Const):
    """`loss[t] = log(sum(exp(logits[t]))) - logits[t, labels[t]]`; the vocabulary is read once.

    A tile is folded into PARTS rows: each column keeps its largest logit so far and its sum of `exp(logit - largest)`, and
    nothing goes from column to column until the vocabulary is through."""
    assert BLOCK % (PARTS * WIDTH) == 0
    tl.requires(V % 8 == 0)
    tl.grid(T)
    tl.values(labels, -1, V)
    t = tl.bid(0)
    label = tl.load(labels, t)
    high = tl.full((BLOCK // PARTS // WIDTH, WIDTH), LOWEST, tl.f32)
    weight = tl.zeros((BLOCK // PARTS // WIDTH, WIDTH), tl.f32)
    for j in range(tl.cdiv(V, BLOCK)):
        v = (
            tl.load(logits, (t, j), shape=(1, BLOCK), pad=-tl.inf)
            .reshape((PARTS, BLOCK // PARTS // WIDTH, WIDTH))
            .astype(tl.f32)
        )
        higher = tl.maximum(high, tl.max(v, axis=0) * LOG2E)
        weight = weight * tl.exp2(high - higher, fast=True) + tl.sum(tl.exp2(v * LOG2E - higher[None, :, :], fast=True), axis=0)
        high = higher
    top = tl.max(high)
    total = tl.sum(weight * tl.exp2(high - top, fast=True))
    chosen = tl.load(logits, (t, tl.maximum(label, 0))).astype(tl.f32)
    nll = (tl.log2(total, fast=True) + top) * LN2 - chosen
    tl.store(loss, t, tl.where(label >= 0, nll, 0.0))
