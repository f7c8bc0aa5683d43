"""First half of a SwiGLU layer at prefill with small M: `matmul_silu_mul` with the weights as left operand (`matmul_few`)."""

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
    resident,
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
def matmul_silu_mul_few(
    a: In[E, M, K],
    b: In[E, Literal[2], I, K],
    out: Out[E, M, I],
    *,
    E: Const,
    BM: Const,
    BN: Const,
    BK: Const,
):
    """`out = silu(a @ b[0].T) * (a @ b[1].T)` in f32, rounded once; a block has BN outputs of BM tokens."""
    resident(b)
    requires(K % 8 == 0 and I % 8 == 0)
    rows = cdiv(M, BM)
    grid(rows * cdiv(I, BN))
    requires(rows * cdiv(I, BN) <= 2147483647)
    m, n = bid(0) % rows, bid(0) // rows
    acc = zeros((2 * BN, BM), f32)
    for k in range(cdiv(K, BK)):
        x = load(a, (m, k), shape=(BM, BK), pad=0)
        y = reshape(load(b, (0, n, k), shape=(2, BN, BK), pad=0), (2 * BN, BK))
        acc = mma(y, x.T, acc)
    both = reshape(acc, (2, BN, BM))
    is_gate = (arange(2) == 0)[:, None, None]
    gate, up = sum(where(is_gate, both, 0.0), axis=0), sum(where(is_gate, 0.0, both), axis=0)
    store(out, (m, n), astype((gate * sigmoid(gate) * up).T, E), mask=True)
