"""Cross entropy of a linear layer and the label of each token, from what `linear_exponentials` found."""

from typing import Literal

from linear_parts import TILES, E, H, L, T, V, log_sums, logits_of_labels

import tilec as tl


@tl.kernel
def linear_cross_entropy_kept(
    x: tl.In[E, T, H],
    weight: tl.In[E, V, H],
    labels: tl.In[L, T],
    maxima: tl.In[tl.f32, TILES, Literal["(T + 7) // 8 * 8"]],
    sums: tl.In[tl.f32, TILES, Literal["(T + 7) // 8 * 8"]],
    kept: tl.In[E, TILES, T, Literal["WIDTH"]],
    loss: tl.Out[tl.f32, T],
    lse: tl.Out[tl.f32, T],
    ignore_index: tl.i32,
    *,
    E: tl.Const,
    L: tl.Const,
    WIDTH: tl.Const,
    ROWS: tl.Const,
    BLOCK: tl.Const,
):
    """As `linear_cross_entropy`. `kept` is for the gradient of this op: the kernel reads nothing of it."""
    tl.requires(H % 8 == 0, T <= 1073741824)
    tl.grid(tl.cdiv(T, ROWS))
    i = tl.bid(0)
    whole = log_sums(maxima, sums, i, ROWS, BLOCK)
    logit = logits_of_labels(x, weight, labels, i, ROWS, BLOCK)
    ignored = tl.load(labels, i, shape=ROWS, pad=0) == ignore_index
    tl.store(lse, i, whole, mask=True)
    tl.store(loss, i, tl.where(ignored, 0.0, whole - logit), mask=True)
