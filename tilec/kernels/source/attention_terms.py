"""Numbers of queries in a form in which a product adds them, for the gradients of keys and values."""

from typing import Literal

from attention_parts import E

import tilec as tl


class N(tl.Dim):
    """queries of all heads and sequences"""


@tl.kernel
def attention_terms(
    lse: tl.In[tl.f32, N],
    delta: tl.In[tl.f32, N],
    terms: tl.Out[E, N, Literal[16]],
    inverse: tl.f32,
    *,
    E: tl.Const,
    BLOCK: tl.Const,
):
    """Columns 0 to 2 are `-lse * inverse`, 0 where `lse` is infinite, and columns 3 to 5 `-delta`; others are 0.

    Three numbers each: their product with 256, 1/8 and 2^-14 is the number again, in bf16 of 24 bits, in f16 of 33, up to 2^24.
    """
    tl.grid(tl.cdiv(N, BLOCK))
    i = tl.bid(0)
    log_sum = tl.load(lse, i, shape=BLOCK, pad=0)
    log_sum = tl.where(log_sum < tl.inf, log_sum * inverse, 0.0)
    own = tl.load(delta, i, shape=BLOCK, pad=0)
    column = tl.arange(16)[None, :]
    rest = tl.where(column < 3, -log_sum[:, None], tl.where(column < 6, -own[:, None], 0.0))
    first = (rest * 0.00390625).astype(E)
    rest = rest - first.astype(tl.f32) * 256.0
    second = (rest * 8.0).astype(E)
    rest = rest - second.astype(tl.f32) * 0.125
    third = (rest * 16384.0).astype(E)
    term = tl.where(column % 3 == 0, first, tl.where(column % 3 == 1, second, third))
    tl.store(terms, (i, 0), term, mask=True)
