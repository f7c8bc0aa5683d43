"""Sum of the parts of a product that `matmul_split` leaves."""

import tilec
from tilec import Const, Dim, Element, In, Out, astype, bid, cdiv, f32, grid, load, requires, reshape, store


class E(Element):
    """bf16 or f16"""


class M(Dim):
    """rows (tokens)"""


class N(Dim):
    """columns"""


class S(Dim):
    """parts"""


@tilec.kernel
def merge_splits(parts: In[f32, S, M, N], out: Out[E, M, N], *, E: Const, S: Const, BLOCK: Const):
    """`out = sum_s(parts[s])`, added in f32 in the order of the parts; BLOCK columns of a row per block."""
    grid(cdiv(N, BLOCK), M)
    requires(N % 8 == 0)
    n, m = bid(0), bid(1)
    acc = load(parts, (0, m, n), shape=(1, 1, BLOCK), pad=0)
    for s in range(1, S):
        acc += load(parts, (s, m, n), shape=(1, 1, BLOCK), pad=0)
    store(out, (m, n), reshape(astype(acc, E), (1, BLOCK)), mask=True)
