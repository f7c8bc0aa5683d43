"""Cross entropy of each token's logits and its label."""

import tilec as tl

LOWEST = -3.0e38
LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453
PARTS = 4
WIDTH = 256


class E(tl.Element):
    """bf16, f16 or f32"""


class L(tl.Element):
    """i32 or i64"""


class T(tl.Dim):
    """number of tokens"""


class V(tl.Dim):
    """size of the vocabulary"""


@tl.kernel
def cross_entropy(
    logits: tl.In[E, T, V],
    labels: tl.In[L, T],
    loss: tl.Out[tl.f32, T],
    lse: tl.Out[tl.f32, T],
    ignore_index: tl.i32,
    *,
    E: tl.Const,
    L: tl.Const,
    BLOCK: tl.Const,
    MULTIPLE: tl.Const,
):
    """`lse[t] = log(sum(exp(logits[t])))` and `loss[t] = lse[t] - logits[t, labels[t]]`; the vocabulary is read once.

    A loss whose label is `ignore_index` is 0. A label outside of the vocabulary has the logit -inf, and its loss is inf.
    A tile is folded into PARTS rows: each column keeps its largest logit so far and its sum of `exp(logit - largest)`, and
    nothing goes from column to column until the vocabulary is through."""
    assert BLOCK % (PARTS * WIDTH) == 0
    tl.requires(V % MULTIPLE == 0)
    tl.grid(T)
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
    total = (tl.log2(tl.sum(weight * tl.exp2(high - top, fast=True)), fast=True) + top) * LN2
    chosen = tl.load(logits, (t, label), pad=-tl.inf).astype(tl.f32)
    tl.store(lse, t, total)
    tl.store(loss, t, tl.where(label == ignore_index, 0.0, total - chosen))
