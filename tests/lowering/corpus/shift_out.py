"""A shift by more than the width: the prover and the interpreter give 0."""

import tilec
from tilec import Dim, In, Out, bid, f32, grid, i32, load, store


class N(Dim):
    """n"""


@tilec.kernel
def shift_out(x: In[f32, 1], out: Out[f32, N]):
    grid(N)
    b = bid(0)
    store(out, b, load(x, b >> i32(40)))
