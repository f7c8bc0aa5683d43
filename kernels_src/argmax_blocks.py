"""First half of an argmax over the vocabulary: the maximum of each part of a row, and where it is."""

import tilec
from tilec import Const, Dim, Element, In, Out, argmax, bid, cdiv, f32, grid, i32, inf, load, max, requires, reshape, store


class E(Element):
    """bf16 or f16"""


class B(Dim):
    """number of rows"""


class V(Dim):
    """vocabulary size"""


class P(Dim):
    """parts per row"""


@tilec.kernel
def argmax_blocks(logits: In[E, B, V], maxima: Out[f32, B, P], indices: Out[i32, B, P], *, E: Const, BLOCK: Const):
    """Reduce BLOCK logits per block to one maximum and its column; the lowest column among equals. No NaN in `logits`."""
    grid(P, B)
    requires(cdiv(V, BLOCK) == P)
    part, row = bid(0), bid(1)
    v = load(logits, (row, part), shape=(1, BLOCK), pad=-inf).astype(f32)
    store(maxima, (row, part), reshape(max(v, axis=1), (1, 1)))
    store(indices, (row, part), reshape(argmax(v, axis=1) + part * BLOCK, (1, 1)))
