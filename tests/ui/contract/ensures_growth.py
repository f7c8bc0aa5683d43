"""A position grows by what another tensor holds, which nothing bounds."""

import tilec
from tilec import Dim, In, InOut, bid, ensures, grid, i32, load, store, values


class N(Dim):
    """elements"""


@tilec.kernel
def ensures_growth(step: In[i32, N], positions: InOut[i32, N]):
    grid(N)
    values(positions, 0, 1000)
    ensures(positions, 0, 2, above=positions)
    i = bid(0)
    store(positions, i, load(positions, i, shape=1) + load(step, i, shape=1) % 3)  #~ E0406
