"""A product whose accumulator is initialized from memory."""

import tilec
from tilec import Dim, In, Out, bf16, f32, grid, load, mma, requires, store


class KD(Dim):
    """depth"""


@tilec.kernel
def initialized_sum(a: In[bf16, 64, KD], w: In[bf16, KD, 128], c: In[f32, 64, 128], out: Out[f32, 64, 128]):
    grid(1)
    requires(KD % 64 == 0)
    acc = load(c, (0, 0), shape=(64, 128))
    for k in range(KD // 64):
        acc = mma(load(a, (0, k), shape=(64, 64)), load(w, (k, 0), shape=(64, 128)), acc)
    store(out, (0, 0), acc)
