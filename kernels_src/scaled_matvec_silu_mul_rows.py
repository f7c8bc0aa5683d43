"""`scaled_matvec_silu_mul` of the tokens of several sequences: the weights are read once for all rows."""

from typing import Literal

from eight_rows import each_once, rows_in_parts, weights_in_parts

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
    mma,
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


class B(Dim):
    """rows, one of each sequence: 2, 4 or 8"""


class I2(Dim):
    """twice the intermediate size"""


class I(Dim):  # noqa: E742
    """intermediate size"""


class K(Dim):
    """inputs"""


@tilec.kernel
def scaled_matvec_silu_mul_rows(
    x: In[E, B, K],
    squares: In[f32, B, Literal["K // 16"]],
    w: In[E, I2, K],
    out: Out[E, B, I],
    eps: f32,
    *,
    E: Const,
    B: Const,
    K: Const,
    ROWS: Const,
    SPLIT: Const,
    BLOCK: Const,
):
    """`out = silu(gate) * up` in f32 for each row, rounded once, where `w` holds the rows of gate, then those of up. Both
    are made as `scaled_matvec_rows` makes its outputs. ROWS outputs per block."""
    grid(I // ROWS)
    requires(8 % B == 0 and 2 * I == I2 and I % ROWS == 0 and K % (SPLIT * BLOCK) == 0)
    resident(w)
    n = bid(0)
    total = sum(load(squares, (0, 0), shape=(B, K // 16)), axis=1)
    scale = rsqrt(total * (1.0 / K) + eps)
    left = zeros((SPLIT, ROWS, 8), f32)
    right = zeros((SPLIT, ROWS, 8), f32)
    for k in range(K // (SPLIT * BLOCK)):
        y = rows_in_parts(load(x, (0, k), shape=(B, SPLIT * BLOCK)), B, SPLIT, BLOCK)
        a = weights_in_parts(load(w, (n, k), shape=(ROWS, SPLIT * BLOCK)), ROWS, SPLIT, BLOCK)
        b = load(w, offset=(I + n * ROWS, k * SPLIT * BLOCK), shape=(ROWS, SPLIT * BLOCK))
        left = mma(a, y, left)
        right = mma(weights_in_parts(b, ROWS, SPLIT, BLOCK), y, right)
    gate = each_once(sum(left, axis=0), ROWS, B) * scale[None, :]
    up = each_once(sum(right, axis=0), ROWS, B) * scale[None, :]
    store(out, (0, n), astype((gate * sigmoid(gate) * up).T, E))
