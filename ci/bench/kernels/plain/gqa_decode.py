"""Grouped query attention of one token a sequence, over a cache."""

from typing import Literal

import tilec as tl


class E(tl.Element):
    """bf16 or f16"""


class B(tl.Dim):
    """sequences"""


class S(tl.Dim):
    """slots of the cache of a sequence"""


class HKV(tl.Dim):
    """heads of keys and values"""


class G(tl.Dim):
    """queries of a head of keys"""


class D(tl.Dim):
    """elements of a head"""


@tl.kernel
def gqa_decode(
    q: tl.In[E, B, Literal["HKV * G"], D],
    keys: tl.In[E, B, S, HKV, D],
    cached: tl.In[E, B, S, HKV, D],
    lengths: tl.In[tl.i32, B],
    out: tl.Out[E, B, Literal["HKV * G"], D],
    scale: tl.f32,
    *,
    E: tl.Const,
    G: tl.Const,
    D: tl.Const,
    BLOCK: tl.Const,
):
    """`out[b, h] = softmax(q[b, h] @ keys[b, :lengths[b], h // G].T * scale) @ cached[...]`"""
    tl.values(lengths, 1, S + 1)
    tl.grid(HKV, B)
    h, b = tl.bid(0), tl.bid(1)
    length = tl.load(lengths, b)
    query = tl.load(q, offset=(b, h * G, 0), shape=(1, 16, D), pad=0).reshape((16, D))
    high = tl.full((16, 1), -tl.inf, tl.f32)
    weight = tl.zeros((16, 1), tl.f32)
    acc = tl.zeros((16, D), tl.f32)
    for j in range(tl.cdiv(length, BLOCK)):
        k = tl.load(keys, (b, j, h, 0), shape=(1, BLOCK, 1, D), pad=0).reshape((BLOCK, D))
        v = tl.load(cached, (b, j, h, 0), shape=(1, BLOCK, 1, D), pad=0).reshape((BLOCK, D))
        inside = (j * BLOCK + tl.arange(BLOCK))[None, :] < length
        scores = tl.where(inside, (query @ k.T) * scale, -tl.inf)
        higher = tl.maximum(high, tl.max(scores, axis=1, keepdims=True))
        w = tl.exp(scores - higher)
        old = tl.exp(high - higher)
        weight = weight * old + tl.sum(w, axis=1, keepdims=True)
        acc = tl.mma(w.astype(E), v, acc * old)
        high = higher
    row = tl.arange(16)[:, None]
    head = tl.where(row < G, h * G + row, HKV * G)
    tl.scatter(out, (b, head, tl.arange(D)[None, :]), (acc / weight).astype(E), mask=True)
