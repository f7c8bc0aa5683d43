"""Copy, with a position that is counted: right, and the prover does not see it; no launch is shown that goes wrong."""

import tilec
from tilec import Dim, In, Out, f32, grid, load, requires, store


class T(Dim):
    """elements"""


@tilec.kernel
def false_counterexample(x: In[f32, T], out: Out[f32, T]):
    grid(1)
    requires(T <= 1000000)
    at = 0
    for j in range(T):
        store(out, at, load(x, j), mask=True)  #~ E0306
        at = (at + 1) % 1000001
