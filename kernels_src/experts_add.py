"""Down projections of the experts of each token, summed by their weights, with the residual added (Shazeer et al., Outrageously
Large Neural Networks, 2017)."""

import tilec as tl

from .dims import E, K, N, T
from .experts_dims import C, X
from .experts_sums import weighted_sums


@tl.kernel
def experts_add(
    x: tl.In[E, T, C, K],
    experts: tl.In[tl.i32, T, C],
    weights: tl.In[tl.f32, T, C],
    w: tl.In[E, X, N, K],
    residual: tl.InOut[E, T, N],
    *,
    E: tl.Const,
    K: tl.Const,
    C: tl.Const,
    ROWS: tl.Const,
    BLOCK: tl.Const,
):
    """`residual[t] += sum of weights[t, c] * (w[experts[t, c]] @ x[t, c])` over c, in order, in f32, the sum rounded once.
    ROWS outputs of one token per block. Blocks of the same rows are neighbors, so that weights which several tokens chose are
    read once."""
    tl.grid(T, N // ROWS)
    tl.requires(K % BLOCK == 0 and N % ROWS == 0)
    tl.values(experts, 0, X)
    tl.resident(w)
    t, n = tl.bid(0), tl.bid(1)
    old = tl.load(residual, (t, n), shape=(1, ROWS)).astype(tl.f32)
    sums = weighted_sums(x, experts, weights, w, t, n, K, C, ROWS, BLOCK)
    tl.store(residual, (t, n), tl.astype(sums + old, E))
