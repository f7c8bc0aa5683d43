"""Gated activation of a SwiGLU layer on rows that hold gate and up side by side (Shazeer, GLU Variants, 2020)."""

import tilec
from tilec import Const, Dim, Element, In, Out, astype, bid, cdiv, f32, grid, load, requires, sigmoid, store


class E(Element):
    """bf16 or f16"""


class T(Dim):
    """number of rows (tokens)"""


class I2(Dim):
    """twice the intermediate size"""


class I(Dim):  # noqa: E742
    """intermediate size"""


@tilec.kernel
def silu_mul_rows(x: In[E, T, I2], out: Out[E, T, I], *, E: Const, ROWS: Const, BLOCK: Const):
    """`out[t, i] = silu(x[t, i]) * x[t, I + i]`: the merged projection's gate half times its up half, rounded once."""
    grid(cdiv(T, ROWS), I // BLOCK)
    requires(2 * I == I2 and I % BLOCK == 0 and I2 % BLOCK == 0)
    rows, part = bid(0), bid(1)
    gate = load(x, (rows, part), shape=(ROWS, BLOCK), pad=0).astype(f32)
    up = load(x, offset=(rows * ROWS, I + part * BLOCK), shape=(ROWS, BLOCK), pad=0).astype(f32)
    store(out, (rows, part), astype(gate * sigmoid(gate) * up, E), mask=True)
