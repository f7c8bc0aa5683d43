"""Gate and up projections at decode after a norm that has begun, with their activation (Shazeer, GLU Variants, 2020)."""

from typing import Literal

import tilec
from tilec import (
    Const,
    Dim,
    Element,
    In,
    Out,
    astype,
    bid,
    f32,
    grid,
    load,
    requires,
    resident,
    rsqrt,
    sigmoid,
    store,
    sum,
    zeros,
)


class E(Element):
    """bf16 or f16"""


class I2(Dim):
    """twice the intermediate size"""


class I(Dim):  # noqa: E742
    """intermediate size"""


class K(Dim):
    """inputs"""


@tilec.kernel
def scaled_matvec_silu_mul(
    x: In[E, Literal[1], K],
    squares: In[f32, Literal[1], Literal["K // 4"]],
    w: In[E, I2, K],
    out: Out[E, Literal[1], I],
    eps: f32,
    *,
    E: Const,
    K: Const,
    ROWS: Const,
    BLOCK: Const,
):
    """`out = silu(gate) * up` in f32, rounded once, where `w` holds the rows of gate, then those of up, and both are made as
    `scaled_matvec` makes its outputs. ROWS outputs per block."""
    grid(I // ROWS)
    requires(2 * I == I2 and I % ROWS == 0 and K % BLOCK == 0)
    resident(w)
    n = bid(0)
    total = sum(load(squares, (0, 0), shape=(1, K // 4)), axis=1)
    scale = rsqrt(total * (1.0 / K) + eps)
    left = zeros((ROWS, BLOCK), f32)
    right = zeros((ROWS, BLOCK), f32)
    for k in range(K // BLOCK):
        y = load(x, (0, k), shape=(1, BLOCK)).astype(f32)
        left += y * load(w, (n, k), shape=(ROWS, BLOCK)).astype(f32)
        right += y * load(w, offset=(I + n * ROWS, k * BLOCK), shape=(ROWS, BLOCK)).astype(f32)
    gate, up = sum(left, axis=1) * scale, sum(right, axis=1) * scale
    store(out, (0, n), astype((gate * sigmoid(gate) * up)[None, :], E))
