"""The number of positive elements is at most that of the elements so far: packed, they stay inside."""

import tilec
from tilec import Dim, In, InOut, grid, i32, invariant, load, store


class N(Dim):
    """number of elements"""


@tilec.kernel
def false_invariant_ok(x: In[i32, N], packed: InOut[i32, N]):
    grid(1)
    count = i32(0)
    for i in range(N):
        invariant(count >= 0, count <= i)
        v = load(x, i)
        if v > 0:
            store(packed, count, v)
            count += 1
