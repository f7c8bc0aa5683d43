"""Gate and up projections at decode with their activation: the first half of a SwiGLU layer (Shazeer, GLU Variants, 2020)."""

import tilec
from tilec import (
    Const,
    Dim,
    Element,
    In,
    Out,
    astype,
    bid,
    cdiv,
    f32,
    grid,
    load,
    mma,
    requires,
    sigmoid,
    store,
    sum,
    zeros,
)


class E(Element):
    """bf16 or f16"""


class B(Dim):
    """rows of activations, 1 to 8"""


class I2(Dim):
    """twice the intermediate size"""


class I(Dim):  # noqa: E742
    """intermediate size"""


class K(Dim):
    """inputs"""


@tilec.kernel
def matvec_silu_mul(
    x: In[E, B, K], w: In[E, I2, K], out: Out[E, B, I], *, E: Const, B: Const, K: Const, ROWS: Const, BLOCK: Const
):
    """`out = silu(x @ gate.T) * (x @ up.T)` in f32, rounded once; `w` holds the rows of gate, then those of up.

    ROWS outputs per block; one row of activations in registers, more on tensor cores, as `matvec` does it.
    """
    grid(cdiv(I, ROWS))
    requires(2 * I == I2 and I % ROWS == 0 and K % BLOCK == 0)
    n = bid(0)
    if B == 1:
        left = zeros((1, ROWS, BLOCK), f32)
        right = zeros((1, ROWS, BLOCK), f32)
        for k in range(K // BLOCK):
            a = load(x, (0, k), shape=(1, BLOCK)).astype(f32)[:, None, :]
            left += a * load(w, (n, k), shape=(ROWS, BLOCK)).astype(f32)[None, :, :]
            right += a * load(w, offset=(I + n * ROWS, k * BLOCK), shape=(ROWS, BLOCK)).astype(f32)[None, :, :]
        gate, up = sum(left, axis=2), sum(right, axis=2)
        store(out, (0, n), astype(gate * sigmoid(gate) * up, E))
    else:
        gate = zeros((ROWS, 8), f32)
        up = zeros((ROWS, 8), f32)
        for k in range(K // BLOCK):
            b = load(x, (0, k), shape=(8, BLOCK), pad=0)
            gate = mma(load(w, (n, k), shape=(ROWS, BLOCK)), b.T, gate)
            up = mma(load(w, offset=(I + n * ROWS, k * BLOCK), shape=(ROWS, BLOCK)), b.T, up)
        store(out, (0, n), astype((gate * sigmoid(gate) * up).T, E), mask=True)
