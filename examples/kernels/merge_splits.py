"""Sum of the parts of a product that `matmul_split` leaves."""

import tilec as tl


class E(tl.Element):
    """bf16 or f16"""


class M(tl.Dim):
    """rows"""


class N(tl.Dim):
    """columns"""


class S(tl.Dim):
    """parts"""


@tl.kernel
def merge_splits(parts: tl.In[tl.f32, S, M, N], out: tl.Out[E, M, N], *, E: tl.Const, S: tl.Const, BLOCK: tl.Const):
    """`out = sum_s(parts[s])`, added in f32 in the order of the parts; BLOCK columns of a row per block."""
    tl.grid(tl.cdiv(N, BLOCK), M)
    tl.requires(N % 8 == 0)
    n, m = tl.bid(0), tl.bid(1)
    acc = tl.load(parts, (0, m, n), shape=(1, 1, BLOCK), pad=0)
    for s in range(1, S):
        acc += tl.load(parts, (s, m, n), shape=(1, 1, BLOCK), pad=0)
    tl.store(out, (m, n), tl.reshape(tl.astype(acc, E), (1, BLOCK)), mask=True)
