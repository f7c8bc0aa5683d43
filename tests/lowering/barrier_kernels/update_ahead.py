"""In-place blocked update: iteration k multiplies block k of `a` and writes block k+1, which the next iteration reads."""

import tilec
from tilec import Dim, In, InOut, Out, bf16, bid, f32, grid, i32, load, mma, requires, store, zeros


class T(Dim):
    """row tiles"""


class KB(Dim):
    """columns of a"""


@tilec.kernel
def update_ahead(a: InOut[bf16, T, 64, KB], w: In[bf16, KB, 64], out: Out[f32, T, 64, 64], turns: i32):
    grid(T)
    requires(KB % 64 == 0, turns >= 0, 64 * turns + 64 <= KB)
    b = bid(0)
    acc = zeros((64, 64), f32)
    for k in range(turns):
        left = load(a, (b, 0, k), shape=(1, 64, 64)).reshape((64, 64))
        right = load(w, (k, 0), shape=(64, 64))
        acc = mma(left, right, acc)
        store(a, (b, 0, k + 1), acc.astype(bf16).reshape((1, 64, 64)))
    store(out, (b, 0, 0), acc.reshape((1, 64, 64)))
