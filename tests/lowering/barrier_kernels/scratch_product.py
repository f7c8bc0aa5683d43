"""Scratch: each iteration writes its own tile and multiplies it right away (write, then mma on the same tile)."""

import tilec
from tilec import Dim, In, Out, Scratch, bf16, bid, f32, grid, i32, load, mma, requires, store, zeros


class T(Dim):
    """row tiles"""


class KB(Dim):
    """columns of x"""


@tilec.kernel
def scratch_product(
    x: In[bf16, T, 64, KB], w: In[bf16, KB, 64], s: Scratch[bf16, T, 64, KB], out: Out[f32, T, 64, 64], turns: i32
):
    grid(T)
    requires(KB % 64 == 0, turns >= 0, 64 * turns <= KB)
    b = bid(0)
    acc = zeros((64, 64), f32)
    for k in range(turns):
        v = load(x, (b, 0, k), shape=(1, 64, 64))
        store(s, (b, 0, k), (v + v).astype(bf16))
        left = load(s, (b, 0, k), shape=(1, 64, 64)).reshape((64, 64))
        right = load(w, (k, 0), shape=(64, 64))
        acc = mma(left, right, acc)
    store(out, (b, 0, 0), acc.reshape((1, 64, 64)))
