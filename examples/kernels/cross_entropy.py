"""Cross entropy of each token's logits and its label; a label of -1 is ignored."""

import tilec
from tilec import (
    Const,
    Dim,
    Element,
    In,
    Out,
    bid,
    cdiv,
    exp2,
    f32,
    full,
    grid,
    i32,
    inf,
    load,
    log2,
    max,
    maximum,
    requires,
    store,
    sum,
    values,
    where,
    zeros,
)

LOWEST = -3.0e38
LOG2E = 1.4426950408889634
PARTS = 4
WIDTH = 256
LN2 = 0.6931471805599453


class E(Element):
    """bf16, f16 or f32"""


class T(Dim):
    """number of tokens"""


class V(Dim):
    """size of the vocabulary"""


@tilec.kernel
def cross_entropy(logits: In[E, T, V], labels: In[i32, T], loss: Out[f32, T], *, E: Const, BLOCK: Const):
    """`loss[t] = log(sum(exp(logits[t]))) - logits[t, labels[t]]`; the vocabulary is read once.

    A tile is folded into PARTS rows: each column keeps its largest logit so far and its sum of `exp(logit - largest)`, and
    nothing goes from column to column until the vocabulary is through."""
    assert BLOCK % (PARTS * WIDTH) == 0
    requires(V % 8 == 0)
    grid(T)
    values(labels, -1, V)
    t = bid(0)
    label = load(labels, t)
    high = full((BLOCK // PARTS // WIDTH, WIDTH), LOWEST, f32)
    weight = zeros((BLOCK // PARTS // WIDTH, WIDTH), f32)
    for j in range(cdiv(V, BLOCK)):
        v = load(logits, (t, j), shape=(1, BLOCK), pad=-inf).reshape((PARTS, BLOCK // PARTS // WIDTH, WIDTH)).astype(f32)
        higher = maximum(high, max(v, axis=0) * LOG2E)
        weight = weight * exp2(high - higher) + sum(exp2(v * LOG2E - higher[None, :, :]), axis=0)
        high = higher
    top = max(high)
    total = sum(weight * exp2(high - top))
    chosen = load(logits, (t, maximum(label, 0))).astype(f32)
    nll = (log2(total) + top) * LN2 - chosen
    store(loss, t, where(label >= 0, nll, 0.0))
