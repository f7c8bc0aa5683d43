"""First half of a SwiGLU layer at prefill: gate and up projection in one product on tensor cores, combined where it is made
(Shazeer, GLU Variants, 2020)."""

from typing import Literal

import tilec
from tilec import (
    Const,
    Dim,
    Element,
    In,
    Out,
    arange,
    astype,
    bid,
    cdiv,
    f32,
    grid,
    load,
    mma,
    requires,
    reshape,
    sigmoid,
    store,
    sum,
    where,
    zeros,
)


class E(Element):
    """bf16 or f16"""


class M(Dim):
    """rows of activations (tokens)"""


class I(Dim):  # noqa: E742
    """intermediate size"""


class K(Dim):
    """inputs"""


@tilec.kernel
def matmul_silu_mul(
    a: In[E, M, K],
    b: In[E, Literal[2], I, K],
    out: Out[E, M, I],
    *,
    E: Const,
    BM: Const,
    BN: Const,
    BK: Const,
    GROUP: Const,
):
    """`out = silu(a @ b[0].T) * (a @ b[1].T)` in f32, rounded once. Blocks walk tiles as those of `matmul` do."""
    requires(K % 8 == 0 and I % 8 == 0)
    rows, columns = cdiv(M, BM), cdiv(I, BN)
    grid(rows * columns)
    requires(rows * columns <= 2147483647)
    t = bid(0)
    first = t // (GROUP * columns) * GROUP
    height = min(rows - first, GROUP)
    m = first + t % (GROUP * columns) % height
    n = t % (GROUP * columns) // height
    acc = zeros((BM, 2 * BN), f32)
    for k in range(cdiv(K, BK)):
        x = load(a, (m, k), shape=(BM, BK), pad=0)
        y = reshape(load(b, (0, n, k), shape=(2, BN, BK), pad=0), (2 * BN, BK))
        acc = mma(x, y.T, acc)
    both = reshape(acc, (BM, 2, BN))
    is_gate = (arange(2) == 0)[None, :, None]
    gate, up = sum(where(is_gate, both, 0.0), axis=1), sum(where(is_gate, 0.0, both), axis=1)
    store(out, (m, n), astype(gate * sigmoid(gate) * up, E), mask=True)
