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
    exp,
    f32,
    full,
    grid,
    i32,
    inf,
    load,
    log,
    max,
    maximum,
    minimum,
    requires,
    store,
    sum,
    values,
    where,
    zeros,
)

LOWEST = -3.0e38


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
    high = full((1, BLOCK), LOWEST, f32)
    weight = zeros((1, BLOCK), f32)
    for j in range(cdiv(V, BLOCK)):
        v = load(logits, (t, j), shape=(1, BLOCK), pad=-inf).astype(f32)
        less = exp(minimum(v, high) - maximum(v, high))
        weight = where(v > high, weight * less + 1, weight + less)
        high = maximum(high, v)
    top = max(high)
    chosen = load(logits, (t, maximum(label, 0))).astype(f32)
    nll = log(sum(weight * exp(high - top))) + top - chosen
    store(loss, t, where(label >= 0, nll, 0.0))
