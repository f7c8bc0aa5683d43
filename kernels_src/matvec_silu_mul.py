"""Gate and up projections at decode with their activation: the first half of a SwiGLU layer (Shazeer, GLU Variants, 2020)."""

import tilec as tl

from .dims import I2, B, E, I, K


@tl.kernel
def matvec_silu_mul(
    x: tl.In[E, B, K],
    w: tl.In[E, I2, K],
    out: tl.Out[E, B, I],
    *,
    E: tl.Const,
    B: tl.Const,
    K: tl.Const,
    ROWS: tl.Const,
    BLOCK: tl.Const,
):
    """`out = silu(x @ gate.T) * (x @ up.T)` in f32, rounded once; `w` holds the rows of gate, then those of up.

    ROWS outputs per block; one row of activations in registers, more on tensor cores, as `matvec` does it.
    """
    tl.grid(tl.cdiv(I, ROWS))
    tl.requires(2 * I == I2 and I % ROWS == 0 and K % BLOCK == 0)
    n = tl.bid(0)
    if B == 1:
        left = tl.zeros((1, ROWS, BLOCK), tl.f32)
        right = tl.zeros((1, ROWS, BLOCK), tl.f32)
        for k in range(K // BLOCK):
            a = tl.load(x, (0, k), shape=(1, BLOCK)).astype(tl.f32)[:, None, :]
            left += a * tl.load(w, (n, k), shape=(ROWS, BLOCK)).astype(tl.f32)[None, :, :]
            right += a * tl.load(w, offset=(I + n * ROWS, k * BLOCK), shape=(ROWS, BLOCK)).astype(tl.f32)[None, :, :]
        gate, up = tl.sum(left, axis=2), tl.sum(right, axis=2)
        tl.store(out, (0, n), tl.astype(gate * tl.sigmoid(gate) * up, E))
    else:
        gate = tl.zeros((ROWS, 8), tl.f32)
        up = tl.zeros((ROWS, 8), tl.f32)
        for k in range(K // BLOCK):
            b = tl.load(x, (0, k), shape=(8, BLOCK), pad=0)
            gate = tl.mma(tl.load(w, (n, k), shape=(ROWS, BLOCK)), b.T, gate)
            up = tl.mma(tl.load(w, offset=(I + n * ROWS, k * BLOCK), shape=(ROWS, BLOCK)), b.T, up)
        tl.store(out, (0, n), tl.astype((gate * tl.sigmoid(gate) * up).T, E), mask=True)
