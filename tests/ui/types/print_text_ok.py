"""Texts of `print` that fit the values: Python's own word too, scalars, tiles that broadcast, numbers, braces, no value."""

import tilec
from tilec import Dim, In, Out, arange, bid, f32, grid, load, store


class N(Dim):
    """number of elements"""


@tilec.kernel
def print_text_ok(x: In[f32, N], out: Out[f32, N]):
    grid(N)
    i = bid(0)
    v = load(x, i)
    print("here")
    print("{{{}}} of {}, 100%", v, 3)
    print("x {}", arange(2048), where=arange(2048) % 512 == i)
    print("product {}", arange(4)[:, None] * arange(5)[None, :])
    if v > 0.0:
        tilec.print("positive {}", v > 1.0, where=i > 2)
    store(out, i, v)
