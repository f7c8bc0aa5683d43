"""Mean of the first `lengths[b]` token embeddings of each sequence."""

import tilec as tl


class E(tl.Element):
    """bf16 or f16"""


class B(tl.Dim):
    """sequences"""


class S(tl.Dim):
    """tokens of a sequence, with padding"""


class H(tl.Dim):
    """elements of an embedding"""


@tl.kernel
def mean_pool(
    x: tl.In[E, B, S, H],
    lengths: tl.In[tl.i32, B],
    out: tl.Out[E, B, H],
    *,
    E: tl.Const,
    BS: tl.Const,
    BH: tl.Const,
):
    """0 where a sequence is empty."""
    tl.grid(tl.cdiv(H, BH), B)
    tl.values(lengths, 0, S + 1)
    h, b = tl.bid(0), tl.bid(1)
    length = tl.load(lengths, b)
    total = tl.zeros((BS, BH), tl.f32)
    for j in range(tl.cdiv(length, BS)):
        v = tl.load(x, (b, j, h), shape=(1, BS, BH), pad=0).reshape((BS, BH)).astype(tl.f32)
        inside = (j * BS + tl.arange(BS))[:, None] < length
        total += tl.where(inside, v, 0)
    mean = tl.sum(total, axis=0) / tl.f32(tl.maximum(length, 1))
    tl.store(out, (b, h), mean.astype(E)[None, :], mask=True)
