"""A token id is used as a row without a word on its range.

Constants: H = 1024
"""

import tilec
from tilec import Const, Dim, In, Out, bf16, bid, grid, i32, load, store


class H(Dim):
    """elements of a row"""


class T(Dim):
    """number of rows"""


class V(Dim):
    """rows of the table"""


@tilec.kernel
def token_id(ids: In[i32, T], table: In[bf16, V, H], out: Out[bf16, T, H], *, H: Const):
    grid(T)
    row = bid(0)
    token = load(ids, row)
    v = load(table, (token, 0), shape=(1, H))  #~ E0301
    store(out, (row, 0), v)
