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
LN2 = 0.6931471805599453


class E(Element):
    """bf16, f16 or f32"""


class T(Dim):
    """number of tokens"""


class V(Dim):
    """size of the vocabulary"""


@tilec.kernel
def cross_entropy(logits: In[E, T, V], labels: In[i32, T], loss: Out[f32, T], *, E: Const, BLOCK: Const):
    """`loss[t] = log(sum(exp(logits[t]))) - logits[t, labels[t]]`; the vocabulary is read once."""
    requires(V % 8 == 0)
    grid(T)
    values(labels, -1, V)
    t = bid(0)
    label = load(labels, t)
    high = f32(LOWEST)
    weight = zeros((1, BLOCK), f32)
    for j in range(cdiv(V, BLOCK)):
        v = load(logits, (t, j), shape=(1, BLOCK), pad=-inf).astype(f32)
        higher = maximum(high, max(v) * LOG2E)
        weight = weight * exp2(high - higher) + exp2(v * LOG2E - higher)
        high = higher
    chosen = load(logits, (t, maximum(label, 0))).astype(f32)
    nll = (log2(sum(weight)) + high) * LN2 - chosen
    store(loss, t, where(label >= 0, nll, 0.0))
