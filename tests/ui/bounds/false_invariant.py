"""The number of positive elements is below that of the elements so far, unless all of them are positive."""

import tilec
from tilec import Dim, In, InOut, grid, i32, invariant, load, store


class N(Dim):
    """number of elements"""


@tilec.kernel
def false_invariant(x: In[i32, N], packed: InOut[i32, N]):
    grid(1)
    count = i32(0)
    for i in range(1, N):
        invariant(count >= 0, count < i)  #~ E0310
        if load(x, i) > 0:
            count += 2
    store(packed, count, 1)
