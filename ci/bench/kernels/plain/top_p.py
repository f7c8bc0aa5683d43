"""Draw a token from the smallest set of most likely ones whose probabilities reach p."""

import tilec as tl


class B(tl.Dim):
    """rows"""


class V(tl.Dim):
    """tokens"""


@tl.kernel
def top_p(
    probs: tl.In[tl.f32, B, V],
    ids: tl.In[tl.i32, B, V],
    u: tl.In[tl.f32, B],
    token: tl.Out[tl.i32, B],
    p: tl.f32,
    *,
    BLOCK: tl.Const,
):
    """`probs` descends in each row, `ids` are its tokens; `u` from 0 to below 1."""
    tl.grid(B)
    b = tl.bid(0)
    run = 0.0
    mass = 0.0
    kept = 0
    for j in range(tl.cdiv(V, BLOCK)):
        inside = (j * BLOCK + tl.arange(BLOCK))[None, :] < V
        v = tl.load(probs, (b, j), shape=(1, BLOCK), pad=0)
        keep = inside & (run + tl.cumsum(v, 1, exclusive=True) < p)
        mass += tl.sum(tl.where(keep, v, 0))
        kept = tl.minimum(kept + tl.sum(tl.where(keep, 1, 0)), V)
        run += tl.sum(v)
        if run >= p:
            break
    target = tl.load(u, b) * mass
    run = 0.0
    at = 0
    for j in range(tl.cdiv(V, BLOCK)):
        inside = (j * BLOCK + tl.arange(BLOCK))[None, :] < V
        v = tl.load(probs, (b, j), shape=(1, BLOCK), pad=0)
        at = tl.minimum(at + tl.sum(tl.where(inside & (run + tl.cumsum(v, 1) <= target), 1, 0)), V)
        run += tl.sum(v)
        if run > target:
            break
    last = tl.minimum(tl.maximum(kept, 1), V) - 1
    at = tl.minimum(tl.maximum(at, 0), last)
    tl.store(token, b, tl.load(ids, (b, at)))
