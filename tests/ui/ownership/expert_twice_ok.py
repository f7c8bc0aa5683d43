"""The share of each expert of a token, stored at the number of the expert. Those of one token differ."""

import tilec
from tilec import Dim, In, InOut, bid, f32, grid, i32, load, store, values


class T(Dim):
    """tokens"""


class K(Dim):
    """experts of a token"""


class X(Dim):
    """experts"""


@tilec.kernel
def expert_twice_ok(experts: In[i32, T, K], shares: In[f32, T, K], by_expert: InOut[f32, T, X]):
    grid(T, K)
    values(experts, 0, X, distinct_in_rows=True)
    t, k = bid(0), bid(1)
    store(by_expert, (t, load(experts, (t, k))), load(shares, (t, k)))
