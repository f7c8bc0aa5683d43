"""Cross entropy of a linear layer and the label of each token, from what `linear_sums` found."""

from typing import Literal

from linear_parts import TILES, E, H, L, T, V, log_sums, logits_of_labels

import tilec as tl


@tl.kernel
def linear_cross_entropy(
    x: tl.In[E, T, H],
    weight: tl.In[E, V, H],
    labels: tl.In[L, T],
    maxima: tl.In[tl.f32, TILES, Literal["(T + 7) // 8 * 8"]],
    sums: tl.In[tl.f32, TILES, Literal["(T + 7) // 8 * 8"]],
    loss: tl.Out[tl.f32, T],
    lse: tl.Out[tl.f32, T],
    ignore_index: tl.i32,
    *,
    E: tl.Const,
    L: tl.Const,
    ROWS: tl.Const,
    BLOCK: tl.Const,
):
    """`lse[t] = log(sum(exp(x[t] @ weight.T)))` and `loss[t] = lse[t] - x[t] @ weight[labels[t]]`, in f32.

    A loss whose label is `ignore_index` is 0. A label outside of the vocabulary has the logit -inf, and its loss is inf.
    A block has ROWS tokens, and reads BLOCK tiles of their sums at a time, or BLOCK elements of a row."""
    tl.requires(H % 8 == 0, T <= 1073741824)
    tl.grid(tl.cdiv(T, ROWS))
    i = tl.bid(0)
    whole = log_sums(maxima, sums, i, ROWS, BLOCK)
    logit = logits_of_labels(x, weight, labels, i, ROWS, BLOCK)
    ignored = tl.load(labels, i, shape=ROWS, pad=0) == ignore_index
    tl.store(lse, i, whole, mask=True)
    tl.store(loss, i, tl.where(ignored, 0.0, whole - logit), mask=True)
