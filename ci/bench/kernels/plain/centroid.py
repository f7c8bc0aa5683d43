"""Nearest centroid of each point."""

import tilec as tl


class E(tl.Element):
    """bf16 or f16"""


class N(tl.Dim):
    """points"""


class K(tl.Dim):
    """centroids"""


class D(tl.Dim):
    """elements of a point"""


@tl.kernel
def centroid(
    x: tl.In[E, N, D],
    centroids: tl.In[E, K, D],
    nearest: tl.Out[tl.i32, N],
    distance: tl.Out[tl.f32, N],
    *,
    E: tl.Const,
    K: tl.Const,
    D: tl.Const,
    BLOCK: tl.Const,
):
    """|x - c|^2 = |x|^2 - 2 x c + |c|^2; argmin over the centroids."""
    tl.grid(tl.cdiv(N, BLOCK))
    i = tl.bid(0)
    p = tl.load(x, (i, 0), shape=(BLOCK, D), pad=0)
    c = tl.load(centroids, (0, 0), shape=(K, D))
    wide_c = c.astype(tl.f32)
    wide_p = p.astype(tl.f32)
    score = tl.sum(wide_c * wide_c, axis=1)[None, :] - 2 * (p @ c.T)
    tl.store(nearest, i, tl.argmin(score, axis=1), mask=True)
    tl.store(distance, i, tl.min(score, axis=1) + tl.sum(wide_p * wide_p, axis=1), mask=True)
